"""What a store holds after a build, how the build plans, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_scale.base.events import StageFinished, StageStarted, ignore_events
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, StoreExistsError, UsageError
from ecgl_scale.store import build
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.edge_source import EdgeBlock, StreamedEdges
from ecgl_scale.store.edges import plan as edge_plan
from ecgl_scale.store.edges.partition import BYTES_PER_EDGE
from ecgl_scale.store.edges.plan import MAX_KEY_BITS, MAX_NODES, BuildOptions, EdgePlan
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.units import MIB
from tests.resources import at
from tests.store.graphs import KEEP_ALL, ROOMY, assert_holds, build_with, bytes_of, random_edges

ALL_OPTIONS = [
    BuildOptions(symmetrise, keep_duplicates, self_loops)
    for symmetrise, keep_duplicates, self_loops in product([False, True], [False, True], ["drop", "keep", "add"])
]


# --- what is stored


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_a_store_holds_what_the_options_ask_for(tmp_path, options):
    for name, num_nodes, num_edges in [("small", 300, 1500), ("one-node", 1, 7), ("no-edges", 5, 0)]:
        edge_index = random_edges(num_nodes, num_edges)
        build_store(array_source(edge_index, num_nodes=num_nodes), tmp_path / name, at(), options=options)
        assert_holds(tmp_path / name, edge_index, num_nodes, options)


@settings(max_examples=25, deadline=None)
@given(
    graph=st.integers(1, 700).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    ),
    options=st.sampled_from(ALL_OPTIONS),
    dtype=st.sampled_from(["<i4", "<i8", "<u4", "<u8", "<u2", ">i8"]),
)
@example(graph=(1, []), options=BuildOptions(self_loops="add"), dtype="<i4")
def test_any_small_graph_is_stored_whatever_the_dtype_of_its_ids(tmp_path_factory, graph, options, dtype):
    num_nodes, edges = graph
    edge_index = np.array(edges, dtype).reshape(-1, 2).T
    path = tmp_path_factory.mktemp("any") / "store"
    build_store(array_source(edge_index, num_nodes=num_nodes), path, at(), options=options)
    assert_holds(path, edge_index, num_nodes, options)


@pytest.mark.parametrize("min_blocks", [1, 32])
def test_several_ranges_and_a_short_last_one_are_stored(tmp_path, monkeypatch, min_blocks):
    # MIN_BLOCKS of 1 gives stripes several ranges wide, as a graph of millions of nodes has.
    monkeypatch.setattr(edge_plan, "MIN_BLOCKS", min_blocks)
    num_nodes = 3 * 65_536 + 1234
    edge_index = random_edges(num_nodes, 60_000)
    options = BuildOptions(symmetrise=True)
    build_with(monkeypatch, tmp_path / "store", edge_index, num_nodes, options, ROOMY)
    store = assert_holds(tmp_path / "store", edge_index, num_nodes, options)
    widths = [store.tiles.width(block) for block in store.tiles.blocks()]
    assert widths == ([1, 1, 1, 1] if min_blocks == 32 else [4])


def test_a_block_is_closed_early_by_its_edges(tmp_path, monkeypatch):
    monkeypatch.setattr(edge_plan, "MIN_BLOCKS", 1)
    monkeypatch.setattr(edge_plan, "MAX_BLOCK_EDGES", 1000)
    num_nodes = 4 * 65_536
    ends = [np.arange(size) + (start << 16) for start, size in enumerate([600, 300, 1500, 100])]
    edge_index = np.stack([np.zeros(2500, int), np.concatenate(ends)])
    build_with(monkeypatch, tmp_path / "store", edge_index, num_nodes, KEEP_ALL, ROOMY)
    store = assert_holds(tmp_path / "store", edge_index, num_nodes, KEEP_ALL)
    assert store.manifest.edges.block_edges == [900, 1500, 100]
    assert store.manifest.edges.block_starts == [0, 2 * 65_536, 3 * 65_536, num_nodes]


# --- plans


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.integers(1, MAX_NODES), st.integers(0, 40).map(lambda bits: 1 << bits)), st.randoms())
def test_buckets_and_blocks_cover_all_rows_in_whole_ranges(num_nodes, random):
    plan = EdgePlan.of(num_nodes)
    assert num_nodes <= 2**plan.source_bits
    assert plan.source_bits + plan.bucket_bits <= MAX_KEY_BITS
    assert plan.buckets_of(Block(0, 0, num_nodes)) == slice(0, plan.num_buckets)
    assert (plan.num_buckets - 1) << plan.bucket_bits < num_nodes
    assert np.iinfo(plan.id_dtype).max >= num_nodes - 1
    if plan.num_buckets > 5000:
        return
    counts = np.array([random.choice([0, 5, 2**25, 2**33]) for _ in range(plan.num_buckets)])
    blocks = plan.cut_blocks(counts)
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == num_nodes
    assert sum(counts[plan.buckets_of(block)].sum() for block in blocks) == counts.sum()
    for block in blocks:
        assert block.start % 65_536 == 0
        assert block.stop == num_nodes or block.stop % 65_536 == 0
        one_unit = block.num_rows <= max(65_536, 1 << plan.bucket_bits)
        assert one_unit or counts[plan.buckets_of(block)].sum() <= edge_plan.MAX_BLOCK_EDGES
        assert one_unit or block.num_rows <= edge_plan.MAX_BLOCK_RANGES * 65_536


@pytest.mark.parametrize("num_nodes", [0, -1, MAX_NODES + 1])
def test_a_graph_that_cannot_be_stored_has_no_plan(num_nodes):
    with pytest.raises(InvalidInputError, match="cannot be stored"):
        EdgePlan.of(num_nodes)


@settings(max_examples=200, deadline=None)
@given(spare_bytes=st.integers(88 * MIB, 1 << 42), threads=st.integers(1, 300), num_keys_hint=st.integers(0, 1 << 36))
def test_shares_never_exceed_the_budget(spare_bytes, threads, num_keys_hint):
    shares = MemoryShares.of(spare_bytes, threads=threads, num_keys_hint=num_keys_hint)
    assert 1 <= shares.threads <= threads
    assert shares.block_edges >= 1
    assert shares.kept_bytes >= 0
    per_thread = max(shares.share_bytes, shares.block_edges * BYTES_PER_EDGE)
    assert RESERVE_BYTES + shares.kept_bytes + shares.threads * per_thread <= spare_bytes


def test_too_small_a_budget_is_refused_with_one_that_works(tmp_path, monkeypatch):
    held = own_memory_bytes()
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: held)
    source = array_source(random_edges(100, 300), num_nodes=100)
    with pytest.raises(DoesNotFitError, match="the build needs") as refusal:
        build_store(source, tmp_path / "store", at(memory="20MiB"))
    assert list(tmp_path.iterdir()) == []
    named = re.search(r"--memory (\d+MiB)", str(refusal.value))
    build_store(source, tmp_path / "store", at(memory=named[1]))
    verify_store(tmp_path / "store", at(on_event=ignore_events))


def test_a_short_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    def no_edges(_):
        raise AssertionError("the edges were read")

    columns = {"year": np.zeros(100_000)}
    source = array_source(random_edges(100_000, 300), x=np.zeros((100_000, 50), np.float32), columns=columns)
    needed = 8 * 300 + 8 * 100_000 + 100_000 * 50 * 4 + 8 * 100_000 + build.DISK_MARGIN_BYTES
    monkeypatch.setattr(build, "free_bytes", lambda _: needed - 1)
    with pytest.raises(DoesNotFitError, match=r"the disk is short[\s\S]*larger disk"):
        build_store(replace(source, edges=StreamedEdges(no_edges)), tmp_path / "store", at())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(build, "free_bytes", lambda _: needed)
    build_store(source, tmp_path / "store", at())


def test_scratch_space_counts_where_the_keys_do_not_fit_in_memory(tmp_path, monkeypatch):
    held = own_memory_bytes()
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: held)
    monkeypatch.setattr(build, "free_bytes", lambda _: 200 * MIB)
    source = replace(array_source(random_edges(10, 30), num_nodes=10), num_edges_hint=10 * MIB)
    build_store(source, tmp_path / "roomy", at(memory=held + 3000 * MIB))
    with pytest.raises(DoesNotFitError, match=r"scratch 80 MiB[\s\S]*more --memory"):
        build_store(source, tmp_path / "tight", at(memory=held + 88 * MIB))


@pytest.mark.parametrize("hint", [0, 1, 10**7])
def test_a_wrong_hint_of_the_edges_changes_nothing(tmp_path, hint):
    edge_index = random_edges(500, 4000)
    source = array_source(edge_index, num_nodes=500)
    build_store(source, tmp_path / "right", at())
    build_store(replace(source, num_edges_hint=hint), tmp_path / "wrong", at())
    assert bytes_of(tmp_path / "wrong") == bytes_of(tmp_path / "right")
    assert_holds(tmp_path / "wrong", edge_index, 500, BuildOptions())


# --- bad input


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0, 1, 5], [0, 1, 2], r"edge 5 -> 2 names a node that does not exist[\s\S]*row 12[\s\S]*0 to 4"),
        ([0, -1, 1], [0, 1, 2], r"edge -1 -> 1 [\s\S]*row 11"),
        ([0, 1], [0, 1, 2], r"2 sources but 3 destinations[\s\S]*row 10"),
        ([0.5, 1.0], [0.0, 1.0], r"edge ids have dtype float64"),
        ([True], [False], r"edge ids have dtype bool"),
        ([[0, 1]], [[0, 1]], r"2 dimensions"),
    ],
)
def test_bad_edges_are_refused_with_their_row_and_leave_nothing(tmp_path, src, dst, message):
    block = EdgeBlock(np.array(src), np.array(dst), "edges.csv", 10)
    source = replace(array_source([[], []], num_nodes=5), edges=StreamedEdges(lambda _: iter([block])))
    with pytest.raises(InvalidInputError, match=message) as refusal:
        build_store(source, tmp_path / "store", at())
    assert "edges.csv" in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_without_nodes_and_an_unknown_option_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="the graph is empty"):
        build_store(array_source([[], []], num_nodes=0), tmp_path / "store", at())
    with pytest.raises(UsageError, match="self_loops is 'maybe'"):
        build_store(
            array_source([[], []], num_nodes=3), tmp_path / "store", at(), options=BuildOptions(self_loops="maybe")
        )
    assert list(tmp_path.iterdir()) == []


def test_an_old_store_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path):
    path = tmp_path / "store"
    build_store(array_source([[0], [1]], num_nodes=2), path, at())
    old = bytes_of(path)
    with pytest.raises(StoreExistsError):
        build_store(array_source([[1], [0]], num_nodes=2), path, at())
    with pytest.raises(InvalidInputError):
        build_store(array_source([[1], [9]], num_nodes=2), path, at(), overwrite=True)
    assert bytes_of(path) == old
    build_store(array_source([[1], [0]], num_nodes=2), path, at(), overwrite=True)
    assert GraphStore.open(path).to_edge_index().tolist() == [[1], [0]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_events_tell_each_stage_and_its_end(tmp_path):
    events = []
    source = array_source(random_edges(50, 100), x=np.ones((50, 2), np.float32), y=np.zeros(50, int))
    build_store(source, tmp_path / "store", at(on_event=events.append))
    stages = ["partition edges", "write rows and tiles", "write features", "write node columns"]
    assert [event.stage for event in events if isinstance(event, StageStarted)] == stages
    assert [event.stage for event in events if isinstance(event, StageFinished)] == stages
