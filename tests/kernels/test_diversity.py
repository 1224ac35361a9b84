"""Distances to neighbour means: equal to the twin, the same bits however columns and rows are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.diversity import add_distances, add_sparse_distances, count_columns, cut_columns, find_bad_distance
from tests import naive
from tests.kernels.lazy import lazy_array

edges_of = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=60)


def csr(edges, num_nodes, dtype=np.uint32):
    stored = sorted(((s % num_nodes, d % num_nodes) for s, d in edges), key=lambda edge: (edge[1], edge[0]))
    indptr, indices = naive.csr_of(stored, num_nodes)
    return stored, np.array(indptr, np.int64), np.array(indices, dtype)


def matrix(num_nodes, num_columns, seed):
    return np.random.default_rng(seed).normal(size=(num_nodes, num_columns)).astype(np.float32)


@settings(max_examples=60)
@given(
    num_nodes=st.integers(1, 9),
    edges=edges_of,
    num_columns=st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 20, 37, 64, 100, 131]),
    include_self=st.booleans(),
    dtype=st.sampled_from([np.uint32, np.uint64]),
    half=st.booleans(),
    seed=st.integers(0, 100),
)
def test_distances_equal_the_twin(num_nodes, edges, num_columns, include_self, dtype, half, seed):
    stored, indptr, indices = csr(edges, num_nodes, dtype)
    x = matrix(num_nodes, num_columns, seed)
    seen = x
    if half:
        x = x.astype(np.float16)
        seen = x.view(np.uint16)
    squared = np.zeros(num_nodes)
    add_distances(indptr, indices, seen, 0, include_self, squared)
    wanted = naive.diversity(stored, x.astype(float).tolist(), include_self=include_self)
    np.testing.assert_allclose(np.sqrt(squared), wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(
    edges=edges_of,
    num_columns=st.integers(1, 90),
    cuts=st.lists(st.integers(0, 22), max_size=4),
    row_cut=st.integers(0, 9),
    seed=st.integers(0, 9),
)
def test_bits_depend_on_neither_slices_nor_row_ranges(edges, num_columns, cuts, row_cut, seed):
    _, indptr, indices = csr(edges, 9)
    x = matrix(9, num_columns, seed)
    whole, cut = np.zeros(9), np.zeros(9)
    add_distances(indptr, indices, x, 0, False, whole)
    bounds = sorted({0, num_columns, *(4 * c for c in cuts if 4 * c < num_columns)})
    for first, stop in pairwise(bounds):
        part = np.ascontiguousarray(x[:, first:stop])
        add_distances(indptr[: row_cut + 1], indices, part, 0, False, cut[:row_cut])
        add_distances(indptr[row_cut:], indices, part, row_cut, False, cut[row_cut:])
    np.testing.assert_array_equal(whole, cut)


def test_a_hub_is_summed_as_exactly_as_a_leaf():
    num_leaves = 300_001
    x = np.full((num_leaves, 4), np.float32(0.1))
    indptr = np.zeros(2, np.int64)
    indptr[1] = num_leaves
    squared = np.zeros(1)
    add_distances(indptr, np.arange(num_leaves, dtype=np.uint32), x, 0, False, squared)
    # In float32 alone the sum would be off by a thousandth.
    assert np.sqrt(squared[0]) < 1e-6


def test_offsets_past_two_to_the_31_are_followed():
    past = 2**31 + 5
    indices = lazy_array(past + 2, np.uint32)
    indices[past : past + 2] = [1, 2]
    squared = np.zeros(1)
    x = np.array([[10.0], [1.0], [3.0]], np.float32)
    add_distances(np.array([past, past + 2]), indices, x, 0, False, squared)
    assert squared[0] == 64.0


@settings(max_examples=60)
@given(
    num_nodes=st.integers(1, 9),
    edges=edges_of,
    num_columns=st.integers(1, 30),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    include_self=st.booleans(),
    cut=st.integers(0, 30),
    seed=st.integers(0, 100),
)
def test_sparse_distances_equal_the_twin(num_nodes, edges, num_columns, density, include_self, cut, seed):
    stored, indptr, indices = csr(edges, num_nodes)
    x = matrix(num_nodes, num_columns, seed)
    x[np.random.default_rng(seed).random(x.shape) >= density] = 0
    rows = scipy.sparse.csr_array(x)
    row_ends, columns = rows.indptr.astype(np.int64), rows.indices.astype(np.uint32)
    counts = np.zeros(num_columns, np.int64)
    count_columns(columns, counts)
    assert counts.tolist() == (x != 0).sum(axis=0).tolist()
    squared = np.zeros(num_nodes)
    bounds = [0, min(cut, num_columns), num_columns]
    for first, stop in pairwise(bounds):
        ends = np.zeros(num_nodes + 1, np.int64)
        held = np.zeros(columns.size, np.uint32), np.zeros(columns.size, np.float32)
        used = cut_columns(row_ends, columns, rows.data, first, stop, 0, ends, *held)
        assert used == ends[-1] == counts[first:stop].sum()
        add_sparse_distances(indptr, indices, ends, *held, 0, include_self, stop - first, squared)
    wanted = naive.diversity(stored, x.astype(float).tolist(), include_self=include_self)
    np.testing.assert_allclose(np.sqrt(squared), wanted, rtol=1e-6, atol=1e-6)


@settings(max_examples=40)
@given(num_nodes=st.integers(1, 9), edges=edges_of, seed=st.integers(0, 100))
def test_the_verifier_passes_true_scores(num_nodes, edges, seed):
    _, indptr, indices = csr(edges, num_nodes)
    x = matrix(num_nodes, 5, seed)
    squared = np.zeros(num_nodes)
    add_distances(indptr, indices, x, 0, False, squared)
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    assert find_bad_distance(indptr, indices, norms, np.sqrt(squared)) == -1


@pytest.mark.parametrize("wrong", [-1.0, 2.0, 4.5, np.nan, np.inf])
def test_the_verifier_finds_an_impossible_score(wrong):
    indptr, indices = np.array([0, 0, 1]), np.array([0], np.uint32)
    norms = np.array([1.0, 3.25])
    assert find_bad_distance(indptr, indices, norms, np.array([1.0, 3.0])) == -1
    assert find_bad_distance(indptr, indices, norms, np.array([1.0, wrong])) == 1
