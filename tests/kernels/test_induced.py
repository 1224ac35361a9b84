"""Edges with both ends kept come out renumbered, however the block's edges are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.induced import keep_edges, part_edges, part_pairs
from tests import naive


def kept_edges(indptr, indices, first_row, local_of, cuts, dtype=np.uint32):
    found = []
    for start, stop in pairwise(cuts):
        src, dst = np.full(stop - start, 77, np.uint32), np.full(stop - start, 77, np.uint32)
        kept = keep_edges(np.array(indptr), np.array(indices, dtype), first_row, (start, stop), local_of, src, dst)
        assert (src[kept:] == 77).all()
        found += zip(src[:kept].tolist(), dst[:kept].tolist(), strict=True)
    return found


@settings(max_examples=100)
@given(
    num_nodes=st.integers(1, 9),
    pairs=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40),
    kept=st.sets(st.integers(0, 8)),
    rows=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    dtype=st.sampled_from([np.uint32, np.uint64]),
)
def test_any_block_cut_anywhere_gives_the_edges_of_the_subgraph(num_nodes, pairs, kept, rows, cuts, dtype):
    edges = sorted({(s % num_nodes, d % num_nodes) for s, d in pairs}, key=lambda edge: (edge[1], edge[0]))
    ids = sorted(node for node in kept if node < num_nodes)
    local_of = np.full(num_nodes, -1, np.int32)
    local_of[ids] = np.arange(len(ids))
    first, last = sorted(min(row, num_nodes) for row in rows)
    block = [(s, d) for s, d in edges if first <= d < last]
    indptr, indices = naive.csr_of([(s, d - first) for s, d in block], last - first)
    wanted = [(ids.index(s), ids.index(d)) for s, d in block if s in ids and d in ids]
    bounds = [0, *sorted(min(cut, len(block)) for cut in cuts), len(block)]
    assert kept_edges(indptr, indices, first, local_of, bounds, dtype) == wanted


@pytest.mark.parametrize("map_dtype", [np.int32, np.int64])
def test_empty_rows_at_a_cut_and_at_the_end_are_stepped_over(map_dtype):
    indptr, indices = [0, 0, 2, 2, 2, 3, 3], [0, 5, 1]
    local_of = np.arange(6).astype(map_dtype)
    wanted = [(0, 1), (5, 1), (1, 4)]
    for cuts in ([0, 3], [0, 1, 2, 3], [0, 2, 3], [0, 2, 2, 3, 3]):
        assert kept_edges(indptr, indices, 0, local_of, cuts) == wanted


def test_sources_of_rows_left_out_are_not_looked_at():
    wild = 2**32 - 1  # would be far outside the map
    local_of = np.array([-1, 0, 1], np.int32)
    assert kept_edges([0, 3, 4, 4], [wild, wild, wild, 2], 0, local_of, [0, 4]) == [(1, 0)]


def test_nothing_is_kept_of_nothing():
    local_of = np.full(3, -1, np.int32)
    assert kept_edges([0, 1, 2, 3], [0, 1, 2], 0, local_of, [0, 3]) == []
    assert kept_edges([0, 0, 0, 0], [], 0, np.arange(3, dtype=np.int32), [0, 0]) == []


@settings(max_examples=100)
@given(
    num_nodes=st.integers(1, 9),
    pairs=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40),
    owners=st.lists(st.integers(-1, 2), min_size=9, max_size=9),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    map_dtype=st.sampled_from([np.int32, np.int64]),
)
def test_several_subgraphs_at_once_have_the_edges_of_each(num_nodes, pairs, owners, cuts, map_dtype):
    edges = sorted({(s % num_nodes, d % num_nodes) for s, d in pairs}, key=lambda edge: (edge[1], edge[0]))
    members = [[node for node in range(num_nodes) if owners[node] == part] for part in range(3)]
    firsts = np.cumsum([0, *map(len, members)])
    number_of = np.full(num_nodes, -1, map_dtype)
    number_of[[node for part in members for node in part]] = np.arange(firsts[-1])
    indptr, indices = (np.array(array) for array in naive.csr_of(edges, num_nodes))
    sources, targets = indices.astype(np.uint32), np.array([d for _, d in edges], np.uint32)
    wanted = [[(ids.index(s), ids.index(d)) for s, d in edges if s in ids and d in ids] for ids in members]
    bounds = [0, *sorted(min(cut, len(edges)) for cut in cuts), len(edges)]
    by_rows, by_pairs = [[], [], []], [[], [], []]
    for start, stop in pairwise(bounds):
        src, dst = np.empty(stop - start, np.uint32), np.empty(stop - start, np.uint32)
        ends = np.full((3, 2), 77)
        part_edges(indptr, sources, 0, (start, stop), number_of, firsts, ends, src, dst)
        for part, (first, last) in enumerate(ends.tolist()):
            by_rows[part] += zip(src[first:last].tolist(), dst[first:last].tolist(), strict=True)
        part_pairs(targets[start:stop], sources[start:stop], number_of, firsts, ends, src, dst)
        for part, (first, last) in enumerate(ends.tolist()):
            by_pairs[part] += zip(src[first:last].tolist(), dst[first:last].tolist(), strict=True)
    assert by_rows == wanted
    assert by_pairs == wanted
