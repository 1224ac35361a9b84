"""Edges become keys grouped by bucket, whatever the ids' dtype, and no id outside the graph gets through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_kernels.partition import DROP_LOOPS, SYMMETRISE, count_edges, count_keys, scatter_edges, scatter_keys
from ecgl_scale.store.edges.plan import MAX_NODES, EdgePlan
from tests import naive
from tests.kernels.lazy import PAST_INT32, lazy_array

ID_DTYPES = (np.int32, np.int64, np.uint32, np.uint64)


def rows_of(edges, dtype):
    pairs = np.array(edges, np.uint64).reshape(-1, 2).astype(dtype)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def partition(edges, dtype, plan, flags, first_place=0, room=None):
    """Count and scatter as the builder does; the buckets' keys and the number of loops."""
    src, dst = rows_of(edges, dtype)
    counts = np.zeros(plan.num_buckets + 1, np.int64)
    assert count_edges(src, dst, plan.num_nodes, plan.bucket_bits, flags, counts) == -1
    offsets = first_place + np.concatenate([[0], np.cumsum(counts[:-1])])
    keys = np.zeros(offsets[-1], np.uint64) if room is None else room
    cursors = offsets[:-1].copy()
    scatter_edges(src, dst, plan.bucket_bits, plan.source_bits, flags, cursors, keys)
    np.testing.assert_array_equal(cursors, offsets[1:])
    buckets = {b: keys[offsets[b] : offsets[b + 1]].tolist() for b in np.flatnonzero(counts[:-1])}
    return buckets, int(counts[-1])


def expected(edges, plan, flags):
    buckets = naive.bucket_keys(
        edges,
        plan.num_buckets,
        bucket_bits=plan.bucket_bits,
        source_bits=plan.source_bits,
        symmetrise=bool(flags & SYMMETRISE),
        drop_loops=bool(flags & DROP_LOOPS),
    )
    return {b: keys for b, keys in enumerate(buckets) if keys}, sum(s == d for s, d in edges)


@st.composite
def graphs(draw):
    num_nodes = draw(st.sampled_from([1, 2, 5, 256, 257, 1000, 70_000]))
    ids = st.one_of(st.integers(0, num_nodes - 1), st.integers(0, min(3, num_nodes - 1)), st.just(num_nodes - 1))
    return num_nodes, draw(st.lists(st.tuples(ids, ids), max_size=40))


@settings(max_examples=120, deadline=None)
@given(graph=graphs(), dtype=st.sampled_from(ID_DTYPES), flags=st.integers(0, 3))
@example(graph=(1, []), dtype=np.int32, flags=0)
@example(graph=(1, [(0, 0), (0, 0)]), dtype=np.int32, flags=SYMMETRISE)
def test_every_edge_goes_to_its_bucket_in_order(graph, dtype, flags):
    num_nodes, edges = graph
    plan = EdgePlan.of(num_nodes)
    assert partition(edges, dtype, plan, flags) == expected(edges, plan, flags)


@pytest.mark.parametrize("num_nodes", [2**31 + 1, 2**32, 2**33, 2**36 + 1, MAX_NODES])
@pytest.mark.parametrize("flags", [0, SYMMETRISE])
def test_graphs_past_32_bits_have_their_keys_too(num_nodes, flags):
    plan = EdgePlan.of(num_nodes)
    last = num_nodes - 1
    edges = [(last, 0), (0, last), (last, last), (2**31, last - 1), (last, 2**31 - 1)]
    assert partition(edges, np.uint64, plan, flags) == expected(edges, plan, flags)
    assert partition(edges, np.int64, plan, flags) == expected(edges, plan, flags)


def test_keys_are_written_past_two_to_the_31():
    plan = EdgePlan.of(1000)
    edges = [(7, 900), (1, 2), (900, 900), (3, 2)]
    room = lazy_array(PAST_INT32 + 100, np.uint64)
    assert partition(edges, np.int32, plan, SYMMETRISE, PAST_INT32, room) == expected(edges, plan, SYMMETRISE)
    assert not room[PAST_INT32 - 5 : PAST_INT32].any()


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("num_nodes", [10, 2**31 - 1, 2**31 + 5, MAX_NODES])
@pytest.mark.parametrize("side", ["source", "destination"])
def test_the_first_id_outside_the_graph_is_found(dtype, num_nodes, side):
    plan = EdgePlan.of(num_nodes)
    limits = np.iinfo(dtype)
    for bad in (-1, -(2**31), -(2**63), num_nodes, num_nodes + 1, 2**32 - 1, 2**63, 2**64 - 1):
        if not limits.min <= bad <= limits.max or 0 <= bad < num_nodes:
            continue
        good, wrong = np.zeros(4, dtype), np.array([1, 2, bad, bad], dtype)
        src, dst = (wrong, good) if side == "source" else (good, wrong)
        counts = np.zeros(plan.num_buckets + 1, np.int64)
        assert count_edges(src, dst, num_nodes, plan.bucket_bits, SYMMETRISE, counts) == 2, bad


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(st.integers(0, 2**20 - 1), max_size=60), shift=st.integers(12, 20), prefix=st.integers(0, 2**43))
def test_a_bucket_is_cut_by_its_leading_bits_without_disorder(keys, shift, prefix):
    base = prefix << 20
    given_keys = np.array([base + key for key in keys], np.uint64)
    counts = np.zeros(2 ** (20 - shift), np.int64)
    count_keys(given_keys, np.uint64(base), np.uint64(shift), counts)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    out = np.zeros(len(keys), np.uint64)
    scatter_keys(given_keys, np.uint64(base), np.uint64(shift), offsets[:-1].copy(), out)
    parts = [[base + key for key in keys if key >> shift == part] for part in range(counts.size)]
    assert counts.tolist() == [len(part) for part in parts]
    assert out.tolist() == [key for part in parts for key in part]


def test_keys_are_moved_past_two_to_the_31():
    out = lazy_array(PAST_INT32 + 10, np.uint64)
    keys = np.array([2**62 + 3, 2**62, 2**62 + 2**40], np.uint64)
    scatter_keys(keys, np.uint64(2**62), np.uint64(40), np.array([PAST_INT32, PAST_INT32 + 5]), out)
    assert out[PAST_INT32 : PAST_INT32 + 2].tolist() == [2**62 + 3, 2**62]
    assert out[PAST_INT32 + 5] == 2**62 + 2**40
