"""Rows lose their self loops, and the transposed rows are the same edges by their sources, ascending."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_kernels.transpose import copy_without_loops, transpose_rows
from tests import naive


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 20))
    ids = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(ids, ids), max_size=60))
    return num_nodes, sorted(edges, key=lambda edge: (edge[1], edge[0])), draw(st.integers(0, num_nodes))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@given(graph=graphs())
def test_a_graph_copied_in_two_blocks_has_all_edges_but_loops(dtype, graph):
    num_nodes, edges, cut = graph
    indptr, indices = (np.array(part) for part in naive.csr_of(edges, num_nodes))
    indices = indices.astype(dtype)
    out_indptr, out_indices = np.zeros(num_nodes + 1, np.int64), np.empty(len(edges), dtype)
    position = 0
    for first, stop in ((0, cut), (cut, num_nodes)):
        offsets = indptr[first : stop + 1]
        values = indices[offsets[0] : offsets[-1]]
        position = copy_without_loops(offsets - offsets[0], values, first, position, out_indptr, out_indices)
    kept = [edge for edge in edges if edge[0] != edge[1]]
    wanted_indptr, wanted_indices = naive.csr_of(kept, num_nodes)
    assert position == len(kept)
    np.testing.assert_array_equal(out_indptr, wanted_indptr)
    np.testing.assert_array_equal(out_indices[:position], wanted_indices)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@given(graph=graphs())
def test_transposed_twice_is_the_same_and_once_is_the_reversed_edges(dtype, graph):
    num_nodes, edges, _ = graph
    indptr, indices = (np.array(part) for part in naive.csr_of(edges, num_nodes))
    indices = indices.astype(dtype)
    once = np.zeros(num_nodes + 1, np.int64), np.empty(len(edges), dtype)
    transpose_rows(indptr, indices, *once)
    wanted = naive.csr_of(sorted(((v, u) for u, v in edges), key=lambda edge: (edge[1], edge[0])), num_nodes)
    for found, expected in zip(once, wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    twice = np.zeros(num_nodes + 1, np.int64), np.empty(len(edges), dtype)
    transpose_rows(*once, *twice)
    np.testing.assert_array_equal(twice[0], indptr)
    np.testing.assert_array_equal(twice[1], indices)
