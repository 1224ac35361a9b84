"""Graphs of many tasks from one pass over the store: the bytes that each has by itself, and everything is read once."""

from __future__ import annotations

import errno
import shutil

import pytest

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.store_source import StoreEdges, StoreNodes, StoreRows
from ecgl_scale.tasks import graphs as graphs_module
from ecgl_scale.tasks.graphs import TaskGraphs
from ecgl_scale.tasks.scaling import Scaling, fit_standard
from ecgl_scale.tasks.stream import TaskStream
from tests.grown_stores import ACROSS_RANGES, make_both
from tests.resources import at
from tests.store.graphs import bytes_of
from tests.tasks.test_graphs import make_store

SCALINGS = ["none", "row_l2", "standard"]


@pytest.fixture(scope="module", params=["dense", "float16", "sparse", None])
def graph(tmp_path_factory, request):
    return make_store(tmp_path_factory.mktemp("graph") / "store", request.param)


def task_graphs(graph, directory, **chosen):
    resources = at(work=directory / "work", **chosen.pop("resources", {}))
    stream = TaskStream.class_incremental(graph)
    return TaskGraphs(graph, stream, directory / "tasks", resources, **chosen)


def one_by_one(graph, directory, **chosen):
    found = task_graphs(graph, directory, **chosen)
    return {task.index: bytes_of(found.own(task).path) for task in found.tasks}


def together(graph, directory, **chosen):
    found = task_graphs(graph, directory, **chosen)
    found.prepare(list(found.tasks))
    assert not (directory / "work" / "parts").exists()
    assert all("parting" not in path.name for path in (directory / "tasks").iterdir())
    return {task.index: bytes_of(found.own(task).path) for task in found.tasks}


def refuse_to_read(monkeypatch):
    """Whoever reads the store's edges or rows for one task fails."""

    def refuse(*args):
        raise AssertionError(f"a graph was extracted by itself: {args[1:]}")

    monkeypatch.setattr(StoreEdges, "read", refuse)
    monkeypatch.setattr(StoreRows, "read", refuse)
    monkeypatch.setattr(StoreNodes, "sparse_features", refuse)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("kind", SCALINGS)
def test_all_graphs_have_the_same_bytes(tmp_path, monkeypatch, graph, kind, self_loops):
    if graph.features is None and kind != "none":
        pytest.skip("there is nothing to scale")
    scaling = fit_standard(graph.features) if kind == "standard" else Scaling(kind)
    wanted = one_by_one(graph, tmp_path / "one", self_loops=self_loops, scaling=scaling)
    refuse_to_read(monkeypatch)
    assert together(graph, tmp_path / "all", self_loops=self_loops, scaling=scaling) == wanted


def test_workers_that_share_no_memory_make_the_same_bytes(tmp_path, graph):
    wanted = one_by_one(graph, tmp_path / "one")
    lost = OSError(errno.EIO, "gone")
    script = ScriptedExecutor(tmp_path / "counts", failures={("tasks.part_edges", 0): [lost, None]})
    assert together(graph, tmp_path / "all", resources={"executor": script}) == wanted
    assert script.times_run("tasks.part_edges", 0) == 2


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_edges_that_came_later_are_parted_too(tmp_path, kind):
    grown = make_both(tmp_path, ACROSS_RANGES, kind=kind).grown
    assert together(grown, tmp_path / "all") == one_by_one(grown, tmp_path / "one")


def test_only_missing_graphs_are_written_and_a_single_one_by_itself(tmp_path, monkeypatch, graph):
    wanted = one_by_one(graph, tmp_path / "all")
    first = task_graphs(graph, tmp_path / "all")
    paths = [first.own(task).path for task in first.tasks]
    kept = paths[0].stat().st_mtime_ns
    for path in paths[1:]:
        shutil.rmtree(path)
    assert together(graph, tmp_path / "all") == wanted
    assert paths[0].stat().st_mtime_ns == kept
    shutil.rmtree(paths[1])
    monkeypatch.setattr(graphs_module, "part_store", lambda *_: pytest.fail("one graph is no reason for a pass"))
    assert together(graph, tmp_path / "all") == wanted


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_every_edge_and_every_row_is_looked_at_once(tmp_path, kind):
    graph = make_store(tmp_path / "store", kind, num_nodes=3000)
    stages = []
    found = task_graphs(graph, tmp_path, resources={"on_event": stages.append})
    found.prepare(list(found.tasks))
    totals = {event.stage: event.total for event in stages if isinstance(event, StageStarted)}
    assert totals["part edges by task"] == graph.num_edges
    assert totals["part features by task"] == graph.num_nodes


def test_a_stop_leaves_finished_graphs_and_no_scratch_files(tmp_path, graph):
    wanted = one_by_one(graph, tmp_path / "one")
    finished = []

    def stop(event):
        if isinstance(event, BlockFinished) and event.stage == "write node columns":
            finished.append(event)
            if len(finished) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(graph, tmp_path / "all", resources={"on_event": stop})
    assert not (tmp_path / "all" / "work" / "parts").exists()
    kept = [path for path in (tmp_path / "all" / "tasks").iterdir() if not path.name.startswith(".")]
    assert len(kept) == 1
    assert GraphStore.open(kept[0]).num_nodes == task_graphs(graph, tmp_path).tasks[0].node_ids.size
    assert together(graph, tmp_path / "all") == wanted


def test_where_the_disk_is_short_graphs_are_extracted_one_by_one(tmp_path, monkeypatch, graph):
    monkeypatch.setattr(graphs_module, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(graphs_module, "part_store", lambda *_: pytest.fail("there is no room for it"))
    found = task_graphs(graph, tmp_path)
    found.prepare(list(found.tasks))
    assert found.own(found.tasks[0]).num_nodes > 0
