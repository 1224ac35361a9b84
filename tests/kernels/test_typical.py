"""Scores of rows are exact where the numbers are small, and the same bits wherever a row lies."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.typical import add_to_groups, find_best, find_nearest, halve_squares, lower_distances
from tests import naive

small = st.integers(-4, 4)


@st.composite
def grouped(draw):
    """Rows of small integers, of which any sum is exact, and their groups; some rows have none."""
    width = draw(st.integers(1, 11))
    rows = draw(st.lists(st.lists(small, min_size=width, max_size=width), max_size=25))
    groups = draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=len(rows)))
    vectors = draw(st.lists(st.lists(small, min_size=width, max_size=width), min_size=6, max_size=6))
    return np.array(rows, np.float32).reshape(-1, width), np.array(groups, np.int64), np.array(vectors, np.float64)


@settings(max_examples=100)
@given(drawn=grouped())
def test_every_kernel_does_what_it_says(drawn):
    rows, groups, vectors = drawn
    halves, found, nearest = np.empty(len(rows)), np.empty(3, np.int64), np.empty(len(rows), np.int64)
    halve_squares(rows, halves)
    assert halves.tolist() == (np.square(rows).sum(axis=1) / 2).tolist()
    weights = np.array([1.0, 0.0, 2.0])
    best = find_best(rows, groups, halves, vectors[:3], weights, found)
    for g in range(3):
        own = np.flatnonzero(groups == g)
        scores = rows[own] @ vectors[g] - weights[g] * halves[own]
        is_there = own.size > 0 and weights[g] > 0
        assert found[g] == (own[np.argmax(scores)] if is_there else -1)
        assert best[g] == (scores.max() if is_there else -np.inf)
    offsets = np.array([0, 1, 3, 6])
    find_nearest(rows, groups, vectors, np.square(vectors).sum(axis=1) / 2, offsets, nearest)
    distances = np.full(len(rows), 9.0)
    lower_distances(rows, groups, vectors[:3], distances)
    for i, g in enumerate(groups.tolist()):
        own = slice(offsets[g], offsets[g + 1]) if g >= 0 else slice(0)
        wanted = naive.nearest(rows[i].tolist(), vectors[own].tolist()) + own.start if g >= 0 else -1
        assert nearest[i] == wanted
        assert distances[i] == (min(9.0, np.square(rows[i] - vectors[g]).sum()) if g >= 0 else 9.0)
    sums = np.zeros((3, rows.shape[1]))
    add_to_groups(rows, groups, sums)
    assert sums.tolist() == [rows[groups == g].sum(axis=0).tolist() for g in range(3)]


def test_equal_rows_have_equal_scores_wherever_they_lie():
    random = np.random.default_rng(0)
    rows = np.repeat(random.normal(size=(1, 37)).astype(np.float32), 50, axis=0)
    halves, found = np.empty(50), np.empty(1, np.int64)
    halve_squares(rows, halves)
    assert len({*halves.tolist()}) == 1
    target, weights = random.normal(size=(1, 37)), np.ones(1)
    scores = {
        float(find_best(rows[a:], np.zeros(50 - a, np.int64), halves[a:], target, weights, found)[0]) for a in range(49)
    }
    assert len(scores) == 1
    assert found.tolist() == [0]
