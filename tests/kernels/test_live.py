"""Edges with a dropped end go, all others stay where they were."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.live import copy_live, count_live, count_live_pairs, find_dropped_end
from tests import naive


def bits_of(num_nodes, dropped):
    flags = np.zeros(num_nodes, np.bool_)
    flags[sorted(dropped)] = True
    return np.packbits(flags, bitorder="little")


@settings(max_examples=100)
@given(
    num_nodes=st.integers(1, 20),
    pairs=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=60),
    dropped=st.sets(st.integers(0, 19)),
    rows=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    dtype=st.sampled_from([np.uint32, np.uint64]),
)
def test_rows_and_pairs_keep_exactly_the_edges_without_a_dropped_end(num_nodes, pairs, dropped, rows, dtype):
    dropped = {node for node in dropped if node < num_nodes}
    bits = bits_of(num_nodes, dropped)
    first, last = sorted(min(row, num_nodes) for row in rows)
    edges = sorted(((s % num_nodes, d % num_nodes) for s, d in pairs), key=lambda edge: (edge[1], edge[0]))
    block = [(s, d) for s, d in edges if first <= d < last]
    live = [(s, d) for s, d in block if s not in dropped and d not in dropped]
    offsets, sources = naive.csr_of([(s, d - first) for s, d in block], last - first)
    wanted_offsets, wanted_sources = naive.csr_of([(s, d - first) for s, d in live], last - first)
    offsets, sources = np.array(offsets, np.int64), np.array(sources, dtype)
    nodes, counts = np.arange(first, last), np.full(last - first, 77)
    count_live(offsets, sources, nodes, bits, counts)
    assert counts.tolist() == np.diff(wanted_offsets).tolist()
    found_offsets, found_sources = np.empty(offsets.size, np.int64), np.empty(len(live), dtype)
    assert copy_live(offsets, sources, nodes, bits, found_offsets, found_sources) == len(live)
    assert (found_offsets.tolist(), found_sources.tolist()) == (list(wanted_offsets), list(wanted_sources))

    src, dst = np.array([s for s, _ in block], dtype), np.array([d for _, d in block], dtype)
    assert count_live_pairs(dst, src, bits) == len(live)
    at = find_dropped_end(src, dst, bits)
    assert at == next((i for i, edge in enumerate(block) if dropped.intersection(edge)), -1)


def test_ids_that_no_node_has_are_not_taken_for_dropped_ones():
    bits = bits_of(5, {4})
    src, dst = np.array([-1, 3, 2**40, 4]), np.array([0, 1, 2, 3])
    assert find_dropped_end(src, dst, bits) == 3
