"""A task graph holds exactly the induced subgraph; it is extracted once, kept, and found again."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecgl_scale.base.events import BlockFinished, Note, StageStarted, ignore_events
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import CorruptStoreError, DoesNotFitError, StoreExistsError, UsageError
from ecgl_scale.rank.degrees import out_degrees
from ecgl_scale.store import build, build_nodes
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import RANGE_ROWS, BuildOptions, EdgePlan
from ecgl_scale.store.edges.write import largest_block_bytes
from ecgl_scale.store.features.files import dense_matrix
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import write_columns
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.tasks.extract_plan import plan_extract
from ecgl_scale.tasks.graphs import TaskGraphs, extract_graph, positions_of
from ecgl_scale.tasks.scaling import Scaling, fit_standard
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.tasks.subset import graph_key
from ecgl_scale.units import GIB, MIB
from tests.resources import at
from tests.store.graphs import KEEP_ALL, bytes_of, random_edges

NUM_NODES = 300
WIDE = 3 * 65_536 + 777
"""Four blocks of rows."""


def features_like(kind, num_nodes, num_features=9, seed=2):
    random = np.random.default_rng(seed)
    x = (random.standard_normal((num_nodes, num_features)) * (random.random((num_nodes, num_features)) < 0.3)).astype(
        np.float32
    )
    x[::7] = 0
    return scipy.sparse.csr_array(x) if kind == "sparse" else x


def labels_like(num_nodes):
    return np.random.default_rng(8).permutation(np.arange(num_nodes) % 7 - 1)


def make_store(path, kind="dense", options=KEEP_ALL, num_nodes=NUM_NODES):
    source = array_source(
        random_edges(num_nodes, 5 * num_nodes, seed=1),
        x=None if kind is None else features_like(kind, num_nodes),
        y=labels_like(num_nodes),
        num_nodes=num_nodes,
    )
    build_store(
        source,
        path,
        at(),
        options=options,
        features_as="sparse" if kind == "sparse" else "dense",
        feature_dtype="float16" if kind == "float16" else "float32",
    )
    return GraphStore.open(path)


@pytest.fixture(scope="module", params=["dense", "sparse", "float16"])
def graph(tmp_path_factory, request):
    """Directed, with repeated edges, loops and isolated nodes; columns come in batches of 70 rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_nodes, "write_columns", partial(write_columns, batch_rows=70))
        return make_store(tmp_path_factory.mktemp("graph") / "store", request.param)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("wide") / "store", num_nodes=WIDE)


def induced_edges(graph, ids, self_loops):
    """The slow way: all edges, one by one."""
    place = {node: row for row, node in enumerate(ids.tolist())}
    edges = [(place[s], place[d]) for s, d in graph.to_edge_index().T.tolist() if s in place and d in place and s != d]
    if self_loops:
        edges += [(row, row) for row in range(ids.size)]
    return sorted(edges, key=lambda edge: (edge[1], edge[0]))


def assert_induced(found, graph, ids, *, self_loops=False):
    assert [tuple(edge) for edge in found.to_edge_index().T.tolist()] == induced_edges(graph, ids, self_loops)
    assert found.manifest.edges.self_loops == ("added" if self_loops else "dropped")
    np.testing.assert_array_equal(found.column("node"), ids)
    assert found.column("node").dtype == np.int64
    np.testing.assert_array_equal(found.column("label"), graph.column("label")[ids])
    assert found.num_classes == graph.num_classes
    verify_store(found.path, at(on_event=ignore_events))


def some_ids(num_nodes=NUM_NODES, seed=0, share=0.4):
    return np.flatnonzero(np.random.default_rng(seed).random(num_nodes) < share)


# --- what is extracted


@pytest.mark.parametrize("self_loops", [False, True])
def test_the_subgraph_is_the_induced_one_with_its_features_and_columns(tmp_path, graph, self_loops):
    ids = some_ids()
    found = extract_graph(graph, ids, tmp_path / "task", at(), self_loops=self_loops)
    assert_induced(found, graph, ids, self_loops=self_loops)
    assert (found.features.kind, found.features.dtype) == (graph.features.kind, graph.features.dtype)
    np.testing.assert_array_equal(dense_matrix(found.features), dense_matrix(graph.features)[ids])
    assert found.manifest.features.num_values == (
        np.count_nonzero(dense_matrix(found.features)) if graph.features.kind == "sparse" else ids.size * 9
    )


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60),
    chosen=st.sets(st.integers(0, 11), min_size=1),
    options=st.builds(
        BuildOptions, symmetrise=st.booleans(), keep_duplicates=st.booleans(), self_loops=st.just("keep")
    ),
    self_loops=st.booleans(),
)
def test_any_small_graph_gives_its_induced_subgraph(tmp_path_factory, pairs, chosen, options, self_loops):
    path = tmp_path_factory.mktemp("any")
    edge_index = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = GraphStore.from_edge_index(edge_index, None, np.arange(12) % 3, path / "store", options=options)
    ids = np.array(sorted(chosen))
    assert_induced(
        extract_graph(graph, ids, path / "task", at(), self_loops=self_loops), graph, ids, self_loops=self_loops
    )
    shutil.rmtree(path)


def test_all_nodes_give_the_graph_without_its_loops(tmp_path, graph):
    ids = np.arange(NUM_NODES)
    assert_induced(extract_graph(graph, ids, tmp_path / "task", at()), graph, ids)


def test_one_node_is_a_graph_too(tmp_path, graph):
    found = extract_graph(graph, np.array([17]), tmp_path / "task", at(), self_loops=True)
    assert (found.num_nodes, found.to_edge_index().tolist()) == (1, [[0], [0]])


def test_a_graph_without_features_and_labels_has_subgraphs_too(tmp_path):
    graph = GraphStore.from_edge_index(random_edges(50, 200), path=tmp_path / "store", num_nodes=50)
    ids = np.arange(5, 40)
    found = extract_graph(graph, ids, tmp_path / "task", at())
    assert (found.features, found.num_classes, list(found.manifest.columns)) == (None, None, ["node"])
    assert [tuple(edge) for edge in found.to_edge_index().T.tolist()] == induced_edges(graph, ids, False)


@pytest.mark.parametrize("kind", ["row_sum", "row_l2", "standard"])
def test_features_are_scaled_on_the_way(tmp_path, graph, kind):
    ids = some_ids(seed=3)
    scaling = fit_standard(graph.features, ids[:50]) if kind == "standard" else Scaling(kind)
    found = extract_graph(graph, ids, tmp_path / "task", at(), scaling=scaling)
    stays_sparse = graph.features.kind == "sparse" and kind != "standard"
    assert (found.features.kind, found.features.dtype) == ("sparse" if stays_sparse else "dense", np.float32)
    wanted = scaling.apply(dense_matrix(graph.features)[ids])
    np.testing.assert_allclose(dense_matrix(found.features), wanted, rtol=1e-6)
    assert found.manifest.provenance["scaling"] == kind


@pytest.mark.parametrize("symmetrise", [False, True])
@pytest.mark.parametrize("keep_duplicates", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
def test_a_part_of_a_symmetrised_graph_is_one(tmp_path, symmetrise, keep_duplicates, self_loops):
    options = BuildOptions(symmetrise=symmetrise, keep_duplicates=keep_duplicates, self_loops="keep")
    graph = make_store(tmp_path / "store", None, options)
    found = extract_graph(graph, some_ids(), tmp_path / "task", at(), self_loops=self_loops)
    edges = found.manifest.edges
    assert (edges.symmetrised, edges.keeps_duplicates) == (symmetrise, keep_duplicates)
    # The ranking takes in-degrees for out-degrees where the manifest says symmetrised: that must be right.
    counted = np.bincount(found.to_edge_index()[0], minlength=found.num_nodes)
    np.testing.assert_array_equal(out_degrees(found)[: found.num_nodes], counted)
    source, target = found.to_edge_index()
    is_symmetric = sorted(zip(source, target, strict=True)) == sorted(zip(target, source, strict=True))
    assert is_symmetric == symmetrise


# --- how it is read


def test_edges_are_taken_in_pieces_that_may_end_inside_a_row(tmp_path, graph, monkeypatch):
    ids = some_ids(share=0.8)
    wanted = bytes_of(extract_graph(graph, ids, tmp_path / "whole", at()).path)
    shares = build.MemoryShares(threads=2, block_edges=7, kept_bytes=0, share_bytes=MIB)
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: shares)
    assert bytes_of(extract_graph(graph, ids, tmp_path / "pieces", at()).path) == wanted


def test_threads_and_budget_do_not_change_a_byte(tmp_path, wide):
    ids = some_ids(WIDE, share=0.3)
    budget = own_memory_bytes() + 110 * MIB
    found = [
        bytes_of(extract_graph(wide, ids, tmp_path / name, at(**given)).path)
        for name, given in {"a": {"threads": 1}, "b": {"threads": 3}, "c": {"memory": budget}}.items()
    ]
    assert found[0] == found[1] == found[2]


def test_blocks_without_a_chosen_node_are_not_read(tmp_path, wide, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(wide.path, copy)
    ids = np.arange(70_000, 131_000, 3)  # rows of the second block alone
    monkeypatch.setattr("ecgl_scale.store.graph.READ_WHOLE_BELOW_BYTES", 0)
    graph = GraphStore.open(copy)
    blocks = graph.edges.blocks()
    for block in (blocks[0], *blocks[2:]):
        graph.edges.path(block).unlink()
    shards = graph.features.blocks()
    used = {int(row) // graph.features.layout.rows_per_block for row in ids}
    for shard in shards:
        if shard.index not in used:
            (copy / "features.zarr" / f"c.{shard.index}.0").unlink()
    found = extract_graph(graph, ids, tmp_path / "task", at())
    source, target = wide.to_edge_index()
    kept = np.isin(source, ids) & np.isin(target, ids) & (source != target)
    wanted = np.stack([np.searchsorted(ids, source[kept]), np.searchsorted(ids, target[kept])])
    np.testing.assert_array_equal(found.to_edge_index(), wanted)
    np.testing.assert_array_equal(dense_matrix(found.features), wide.features.rows(ids))
    assert plan_extract(graph, ids, room_bytes=GIB, threads=1).blocks == 1


def test_a_damaged_source_is_said_and_leaves_nothing(tmp_path, wide, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(wide.path, copy)
    monkeypatch.setattr("ecgl_scale.store.graph.READ_WHOLE_BELOW_BYTES", 0)
    graph = GraphStore.open(copy)
    path = graph.edges.path(graph.edges.blocks()[1])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match=r"does not have the bytes"):
        extract_graph(graph, np.arange(70_000, 80_000), tmp_path / "out" / "task", at())
    assert list((tmp_path / "out").iterdir()) == []


def test_progress_is_told(tmp_path, graph):
    events = []
    extract_graph(graph, some_ids(), tmp_path / "task", at(on_event=events.append))
    started = [event.stage for event in events if isinstance(event, StageStarted)]
    assert started == ["partition edges", "write rows and tiles", "write features", "write node columns"]
    assert {event.stage for event in events if isinstance(event, BlockFinished)} == set(started)


# --- what it needs


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_peak_stays_under_the_plan(tmp_path, kind):
    num_nodes = 1_500_000
    random = np.random.default_rng(0)
    x = features_like(kind, num_nodes, num_features=4)
    graph = GraphStore.from_edge_index(
        random.integers(0, num_nodes, (2, 6_000_000)), x, np.arange(num_nodes) % 3, tmp_path / "store"
    )
    ids = np.arange(0, num_nodes, 2)
    extract_graph(graph, ids[:100], tmp_path / "first", at())  # compiled code stays with the process
    del x
    held = own_memory_bytes()
    plan = plan_extract(graph, ids, room_bytes=160 * MIB, threads=2)
    assert plan.host_bytes <= 160 * MIB
    assert plan.formula.startswith("4 bytes a node")
    with PeakSampler() as sampler:
        found = extract_graph(graph, ids, tmp_path / "task", at(memory=held + 160 * MIB))
    assert sampler.peak_bytes - held <= 1.1 * plan.host_bytes
    assert found.num_nodes == ids.size
    written = found.manifest.total_bytes
    assert 0.3 * written < plan.written_bytes < 3 * written
    assert plan.read_bytes <= 1.1 * graph.manifest.total_bytes


def test_a_budget_that_is_too_small_is_refused_before_anything_is_written(tmp_path, graph):
    budget = own_memory_bytes() + 50 * MIB
    with pytest.raises(DoesNotFitError, match="extract task graph needs"):
        extract_graph(graph, some_ids(), tmp_path / "out" / "task", at(memory=budget))
    assert not (tmp_path / "out").exists()
    assert plan_extract(graph, some_ids(), room_bytes=50 * MIB, threads=1).host_bytes > 50 * MIB


@pytest.mark.parametrize(
    "ids",
    [
        np.empty(0, np.int64),
        np.array([3, 2]),
        np.array([2, 2]),
        np.array([-1, 2]),
        np.array([0, NUM_NODES]),
        np.array([0, 1], np.int32),
        np.array([0.0, 1.0]),
    ],
)
def test_ids_that_make_no_sense_are_refused(tmp_path, graph, ids):
    with pytest.raises(UsageError):
        extract_graph(graph, ids, tmp_path / "task", at())
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten_unless_asked(tmp_path, graph):
    extract_graph(graph, np.arange(9), tmp_path / "task", at())
    with pytest.raises(StoreExistsError):
        extract_graph(graph, np.arange(7), tmp_path / "task", at())
    assert GraphStore.open(tmp_path / "task").num_nodes == 9
    assert extract_graph(graph, np.arange(7), tmp_path / "task", at(), overwrite=True).num_nodes == 7


# --- kept


@pytest.fixture(scope="module")
def tasks(graph):
    return TaskStream.class_incremental(graph)


def test_own_and_seen_graphs_of_every_task(tmp_path, graph, tasks):
    graphs = TaskGraphs(graph, tasks, tmp_path / "cache", at(), self_loops=True)
    for task in tasks:
        assert_induced(graphs.own(task), graph, task.node_ids, self_loops=True)
        seen = np.sort(np.concatenate([earlier.node_ids for earlier in tasks.seen(task)]))
        assert_induced(graphs.seen(task), graph, seen, self_loops=True)
        np.testing.assert_array_equal(graphs.node_ids(task, scope="seen"), seen)
    # The first task's two graphs are one.
    assert len(list((tmp_path / "cache").iterdir())) == 2 * len(tasks) - 1
    own_edges = sum(graphs.own(task).num_edges for task in tasks)
    assert graphs.seen(tasks[-1]).num_edges > own_edges


def test_kept_graphs_are_found_again_and_not_built(tmp_path, graph, tasks):
    first = TaskGraphs(graph, tasks, tmp_path, at()).own(tasks[1])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    events = []
    again = TaskGraphs(graph, TaskStream.class_incremental(graph), tmp_path, at(on_event=events.append))
    assert again.own(again.tasks[1]).path == first.path
    assert again.own(again.tasks[1]) is again.own(again.tasks[1])
    assert events == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_another_scaling_loops_nodes_or_store_is_another_graph(tmp_path, graph, tasks):
    ids = tasks[0].node_ids
    other = make_store(tmp_path / "other", None)
    keys = {
        graph_key(graph, ids, self_loops=False, scaling=Scaling()),
        graph_key(graph, ids, self_loops=True, scaling=Scaling()),
        graph_key(graph, ids, self_loops=False, scaling=Scaling("row_l2")),
        graph_key(graph, ids, self_loops=False, scaling=fit_standard(graph.features, ids)),
        graph_key(graph, ids, self_loops=False, scaling=fit_standard(graph.features, ids[1:])),
        graph_key(graph, ids[1:], self_loops=False, scaling=Scaling()),
        graph_key(other, ids, self_loops=False, scaling=Scaling()),
    }
    assert len(keys) == 7


def test_the_same_store_elsewhere_has_the_same_keys(tmp_path, graph, tasks):
    shutil.copytree(graph.path, tmp_path / "copy")
    copy = GraphStore.open(tmp_path / "copy")
    ids = tasks[0].node_ids
    keys = {graph_key(store, ids, self_loops=False, scaling=Scaling()) for store in (graph, copy)}
    assert len(keys) == 1


def test_a_stopped_extraction_leaves_no_graph_and_the_next_one_makes_it(tmp_path, graph, tasks):
    class StopError(Exception):
        pass

    def stop(event):
        if isinstance(event, StageStarted) and event.stage == "write features":
            raise StopError

    with pytest.raises(StopError):
        TaskGraphs(graph, tasks, tmp_path, at(on_event=stop)).own(tasks[0])
    assert list(tmp_path.iterdir()) == []
    # As after a kill: an unfinished directory is left behind.
    key = graph_key(graph, tasks[0].node_ids, self_loops=False, scaling=Scaling())
    (tmp_path / f".{key}.ecgl.building" / "edges").mkdir(parents=True)
    assert_induced(TaskGraphs(graph, tasks, tmp_path, at()).own(tasks[0]), graph, tasks[0].node_ids)
    assert [path.name for path in tmp_path.iterdir()] == [f"{key}.ecgl"]


@pytest.mark.parametrize("harm", ["cut", "missing"])
def test_a_damaged_kept_graph_is_made_anew_and_said(tmp_path, graph, tasks, harm):
    path = TaskGraphs(graph, tasks, tmp_path, at()).own(tasks[0]).path
    nodes = path / "nodes.arrow"
    if harm == "cut":
        nodes.write_bytes(nodes.read_bytes()[:-8])
    else:
        nodes.unlink()
    events = []
    found = TaskGraphs(graph, tasks, tmp_path, at(on_event=events.append)).own(tasks[0])
    assert_induced(found, graph, tasks[0].node_ids)
    assert any(isinstance(event, Note) and "extracted anew" in event.text for event in events)
    assert list(tmp_path.iterdir()) == [path]


def test_somebody_elses_directory_is_left_alone(tmp_path, graph, tasks):
    key = graph_key(graph, tasks[0].node_ids, self_loops=False, scaling=Scaling())
    (tmp_path / f"{key}.ecgl").mkdir()
    (tmp_path / f"{key}.ecgl" / "diary.txt").write_text("dear")
    with pytest.raises(FileNotFoundError, match="no manifest"):
        TaskGraphs(graph, tasks, tmp_path, at()).own(tasks[0])
    assert (tmp_path / f"{key}.ecgl" / "diary.txt").read_text() == "dear"


def test_tasks_of_another_stream_are_refused(tmp_path, graph, tasks):
    graphs = TaskGraphs(graph, tasks, tmp_path, at())
    graphs.own(tasks[0])
    for other in (TaskStream.class_incremental(graph)[0], TaskStream.class_incremental(graph, seed=1)[2]):
        with pytest.raises(UsageError, match="not of this stream"):
            graphs.own(other)


def test_the_plan_of_all_tasks_is_the_largest_and_reads_the_store_once(tmp_path, graph, tasks):
    graphs = TaskGraphs(graph, tasks, tmp_path, at(threads=1))
    plans = [plan_extract(graph, task.node_ids, room_bytes=GIB, threads=1) for task in tasks]
    plan = graphs.plan(GIB)
    written = sum(each.written_bytes for each in plans)
    assert plan.host_bytes == max(each.host_bytes for each in plans)
    assert plan.written_bytes == 2 * written, "the parts, and the graphs"
    edge_bytes = sum(graph.edges.file_bytes(block) for block in graph.edges.blocks())
    feature_bytes = 0 if graph.features is None else graph.features.stored_bytes
    assert plan.read_bytes == edge_bytes + feature_bytes + written
    assert plan.passes == 1
    more = graphs.plan(GIB, seen=list(graphs.tasks))
    assert more.written_bytes > plan.written_bytes
    assert more.passes == 1 + len(tasks)
    assert list(tmp_path.iterdir()) == []


def test_positions_are_rows_of_the_task_graph(tmp_path, graph, tasks):
    nodes = TaskGraphs(graph, tasks, tmp_path, at()).own(tasks[1]).column("node")
    local = positions_of(nodes, tasks[1].train_ids)
    assert local.dtype == np.int64
    np.testing.assert_array_equal(nodes[local], tasks[1].train_ids)
    assert positions_of(nodes, nodes[[3, 0]]).tolist() == [3, 0]
    assert positions_of(nodes, np.empty(0, np.int64)).size == 0
    absent = np.setdiff1d(np.arange(NUM_NODES), nodes)
    for wrong in (absent[0], absent[-1], NUM_NODES + 5, -1):
        with pytest.raises(UsageError, match=f"node {wrong} is not in this task graph"):
            positions_of(nodes, np.array([nodes[0], wrong]))


def test_a_task_graph_says_where_it_is_from(tmp_path, graph):
    found = extract_graph(graph, some_ids(), tmp_path / "task", at(), scaling=Scaling("row_l2"))
    key = graph_key(graph, some_ids(), self_loops=False, scaling=Scaling("row_l2"))
    wanted = {"kind": "task graph", "of": "store", "key": key, "scaling": "row_l2"}
    assert json.loads((found.path / "manifest.json").read_text())["provenance"] == wanted


def test_a_plan_counts_of_a_threads_share_what_the_largest_block_takes(wide):
    ids = np.arange(wide.num_nodes)
    degrees = wide.edges.in_degrees()
    known, unknown = (plan_extract(wide, ids, room_bytes=8 * GIB, threads=2, in_degrees=d) for d in (degrees, None))
    assert known.host_bytes < unknown.host_bytes
    plan = EdgePlan.of(wide.num_nodes)
    hub = np.zeros(plan.num_buckets, np.int64)
    hub[0] = 1000
    rows = min(RANGE_ROWS, wide.num_nodes)
    assert largest_block_bytes(plan, hub) == 1000 * (4 + 4 + 16) + 8 * (rows + 1)
