"""Sorted keys become rows; the checker of rows sees every kind of fault."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.csr import count_sources, emit_rows, find_bad_row
from ecgl_scale.store.edges.plan import MAX_NODES, EdgePlan
from ecgl_scale.store.edges.write import NO_KEY
from tests import naive

GOOD = ([0, 2, 2, 5], [1, 3, 0, 2, 3])


def rows_from_chunks(chunks, source_bits, num_rows, dtype, *, keep_duplicates, in_place=False):
    degrees = np.zeros(num_rows, np.int64)
    previous, found = NO_KEY, []
    for chunk in chunks:
        keys = np.array(chunk, np.uint64)
        if not keys.size:
            continue
        last = keys[-1]
        sources = keys.view(dtype) if in_place else np.zeros(keys.size, dtype)
        kept = emit_rows(keys, source_bits, previous, keep_duplicates, degrees, sources)
        found += sources[:kept].tolist()
        previous = last
    return np.concatenate([[0], np.cumsum(degrees)]).tolist(), found


@settings(max_examples=100, deadline=None)
@given(
    num_nodes=st.integers(1, 9),
    pairs=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=50),
    cuts=st.lists(st.integers(0, 50), max_size=4),
    dtype=st.sampled_from([np.uint32, np.uint64]),
    keep_duplicates=st.booleans(),
    in_place=st.booleans(),
)
def test_rows_come_out_the_same_however_the_keys_are_cut(num_nodes, pairs, cuts, dtype, keep_duplicates, in_place):
    edges = [(s % num_nodes, d % num_nodes) for s, d in pairs]
    keys = sorted(d << 32 | s for s, d in edges)
    bounds = [0, *sorted(cuts), len(keys)]
    chunks = [keys[start:stop] for start, stop in pairwise(bounds)]
    stored, _, _ = naive.stored_edges(
        edges, num_nodes, symmetrise=False, keep_duplicates=keep_duplicates, self_loops="keep"
    )
    found = rows_from_chunks(chunks, 32, num_nodes, dtype, keep_duplicates=keep_duplicates, in_place=in_place)
    assert found == naive.csr_of(stored, num_nodes)


@pytest.mark.parametrize("num_nodes", [2**33, MAX_NODES])
def test_the_last_edge_of_a_huge_graph_is_kept(num_nodes):
    plan = EdgePlan.of(num_nodes)
    row, source = 2**plan.bucket_bits - 1, num_nodes - 1
    keys = np.array([row << plan.source_bits | source] * 3, np.uint64)
    assert keys[0] != NO_KEY
    degrees = np.zeros(2**plan.bucket_bits, np.int64)
    sources = np.zeros(3, np.uint64)
    assert emit_rows(keys, plan.source_bits, NO_KEY, False, degrees, sources) == 1
    assert (sources[0], degrees[row]) == (source, 1)


def test_degrees_grow_from_what_they_are():
    degrees = np.array([2**31, 2**40], np.int64)
    emit_rows(np.array([0, 1, 1 << 8], np.uint64), 8, NO_KEY, True, degrees, np.zeros(3, np.uint32))
    assert degrees.tolist() == [2**31 + 2, 2**40 + 1]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_good_rows_pass(dtype):
    indptr, indices = np.array(GOOD[0]), np.array(GOOD[1], dtype)
    assert find_bad_row(indptr, indices, 4, False) == -1
    assert find_bad_row(np.zeros(4, np.int64), np.zeros(0, dtype), 4, False) == -1


@pytest.mark.parametrize(
    ("indptr", "indices", "bad_row"),
    [
        ([1, 2, 2, 5], GOOD[1], 0),
        ([0, 2, 2, 4], GOOD[1], 0),
        ([0, 2, 2, 6], GOOD[1], 0),
        ([0, 2, 1, 5], GOOD[1], 1),
        ([0, 2, -3, 5], GOOD[1], 1),
        ([0, 2, 2**62, 5], GOOD[1], 1),
        ([0, 2**62, 2, 5], GOOD[1], 0),
        (GOOD[0], [3, 1, 0, 2, 3], 0),
        (GOOD[0], [1, 3, 0, 3, 2], 2),
        (GOOD[0], [1, 3, 0, 2, 4], 2),
        (GOOD[0], [1, 3, 0, 2, 2**32 - 1], 2),
        (GOOD[0], [1, 3, 0, 2, 2], 2),
    ],
)
def test_each_kind_of_bad_row_is_found(indptr, indices, bad_row):
    assert find_bad_row(np.array(indptr), np.array(indices, np.uint32), 4, False) == bad_row


def test_duplicates_pass_where_they_are_allowed_and_disorder_still_does_not():
    indptr = np.array([0, 3])
    assert find_bad_row(indptr, np.array([1, 1, 2], np.uint32), 4, True) == -1
    assert find_bad_row(indptr, np.array([1, 2, 1], np.uint32), 4, True) == 0


@settings(max_examples=150, deadline=None)
@given(
    indptr=st.lists(st.integers(0, 6), min_size=2, max_size=5),
    sort=st.booleans(),
    indices=st.lists(st.integers(0, 4), max_size=6),
    allow_duplicates=st.booleans(),
)
def test_the_checker_agrees_with_its_twin(indptr, sort, indices, allow_duplicates):
    if sort:
        indptr = [0, *sorted(indptr)[1:-1], len(indices)]
        indices = sorted(indices)
    found = find_bad_row(np.array(indptr), np.array(indices, np.uint32), 4, allow_duplicates)
    assert found == naive.first_bad_row(indptr, indices, 4, allow_duplicates=allow_duplicates)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=40), st.sampled_from([np.uint32, np.uint64]))
def test_out_degrees_are_counts_of_sources(sources, dtype):
    degrees = np.zeros(8, np.int64)
    count_sources(np.array(sources, dtype), degrees)
    assert degrees.tolist() == [sources.count(node) for node in range(8)]
