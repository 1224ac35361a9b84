"""Graphs of tasks with context have the nodes that a search by hand finds, and the edges among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.graph.node_set import NodeSet
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks import context as context_module
from ecgl_scale.tasks.context import ContextFinder, ContextRule, unlabelled_nodes
from ecgl_scale.tasks.context_sizes import ContextSizes
from ecgl_scale.tasks.graphs import TaskGraphs
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.tasks.subset import NODE
from tests import naive
from tests.resources import at
from tests.store.graphs import bytes_of

RULES = ["none", "hops:1", "hops:2", "hops:7", "all"]
NUM_NODES = 240


def draw(num_nodes=NUM_NODES, num_edges=300, seed=0):
    """Sparse, directed, with isolated nodes; four classes, and most nodes without a label."""
    random = np.random.default_rng(seed)
    y = random.permutation(np.arange(num_nodes) % 12)
    edges = random.integers(0, num_nodes // 4 * 3, (2, num_edges))
    return edges, np.where(y < 4, y, -1), random.normal(size=(num_nodes, 5)).astype(np.float32)


def write(path, drawn, options=None):
    edges, y, x = drawn
    return GraphStore.from_edge_index(edges, x, y, path, num_nodes=len(y), options=options or BuildOptions())


@pytest.fixture(scope="module")
def drawn():
    return draw()


@pytest.fixture(scope="module", params=["directed", "symmetrised"])
def graph(drawn, tmp_path_factory, request):
    options = BuildOptions(symmetrise=request.param == "symmetrised")
    return write(tmp_path_factory.mktemp("graph") / "store", drawn, options)


def graphs_of(graph, directory, context, resources=None, **chosen):
    rule = ContextRule.parse(context)
    stream = TaskStream.class_incremental(graph)
    return TaskGraphs(graph, stream, directory, resources or at(), context=rule, **chosen)


def edges_in(graph):
    found = []
    for block, rows in graph.edges.stream_parts():
        targets = np.repeat(np.arange(block.start, block.stop), np.diff(rows.offsets))
        found += zip(rows.values.tolist(), targets.tolist(), strict=True)
    return found


def drop(graph, gone):
    drop_nodes(graph.path, gone, at())
    return GraphStore.open(graph.path)


@pytest.mark.parametrize("context", RULES)
@pytest.mark.parametrize("scope", ["own", "seen"])
def test_a_task_graph_has_the_nodes_and_edges_that_are_found_by_hand(graph, drawn, tmp_path, context, scope):
    edges, labels = edges_in(graph), drawn[1].tolist()
    graphs = graphs_of(graph, tmp_path, context)
    for task in graphs.tasks:
        found = graphs.own(task) if scope == "own" else graphs.seen(task)
        seeds = graphs.labelled_ids(task, scope).tolist()
        nodes = naive.with_context(edges, labels, seeds, graphs.context.hops)
        assert found.column(NODE).tolist() == nodes == graphs.node_ids(task, scope=scope).tolist()
        place = {node: row for row, node in enumerate(nodes)}
        wanted = [(place[s], place[t]) for s, t in edges if s in place and t in place]
        assert sorted(edges_in(found)) == sorted(wanted)
        np.testing.assert_array_equal(found.require_features().rows_dense(np.arange(len(nodes))), drawn[2][nodes])
        assert found.column("label").tolist() == [labels[node] for node in nodes]


@pytest.mark.parametrize("context", ["hops:1", "hops:3", "all"])
def test_no_labelled_node_of_another_task_comes_in(graph, drawn, tmp_path, context):
    graphs = graphs_of(graph, tmp_path, context)
    for task in graphs.tasks:
        labels = drawn[1][graphs.own(task).column(NODE)]
        assert set(labels.tolist()) == {-1, *task.classes}


@settings(max_examples=80, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40),
    labels=st.lists(st.integers(-1, 2), min_size=20, max_size=20),
    task=st.integers(0, 2),
    hops=st.one_of(st.none(), st.integers(0, 5)),
)
def test_context_is_what_a_search_finds(edges, labels, task, hops, tmp_path_factory):
    labels = [0, 1, 2, *labels[3:]]
    y, random = np.array(labels), np.zeros((20, 1), np.float32)
    pairs = np.array(edges, np.int64).reshape(-1, 2).T
    graph = GraphStore.from_edge_index(pairs, random, y, tmp_path_factory.mktemp("g") / "store", num_nodes=20)
    seeds = np.flatnonzero(y == task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_module, "ROWS_AT_ONCE", 3)
        found = ContextFinder(graph, 2).nodes(seeds, ContextRule(hops), None)
    assert found.tolist() == naive.with_context(edges_in(graph), labels, seeds.tolist(), hops)


def test_paths_through_nodes_of_another_task_bring_nothing_in(tmp_path):
    """3 -> 2 -> 0: node 2 is of another class; 4 -> 1 alone leads through unlabelled nodes."""
    edges = np.array([[3, 2, 4, 5], [2, 0, 1, 4]])
    y = np.array([0, 0, 1, -1, -1, -1, 1, -1])
    graph = GraphStore.from_edge_index(edges, np.zeros((8, 1), np.float32), y, tmp_path / "store", num_nodes=8)
    finder, seeds = ContextFinder(graph, 1), np.array([0, 1])
    assert finder.nodes(seeds, ContextRule(1), None).tolist() == [0, 1, 4]
    assert finder.nodes(seeds, ContextRule(9), None).tolist() == [0, 1, 4, 5]
    assert finder.nodes(seeds, ContextRule(None), None).tolist() == [0, 1, 3, 4, 5, 7]
    both = np.array([0, 1, 2, 6])
    assert finder.nodes(both, ContextRule(9), None).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_where_all_nodes_have_labels_graphs_are_those_without_context(drawn, tmp_path):
    edges, y, x = drawn
    graph = write(tmp_path / "store", (edges, np.maximum(y, 0), x))
    wanted = graphs_of(graph, tmp_path / "none", "none")
    for context in RULES[1:]:
        graphs = graphs_of(graph, tmp_path / context, context)
        for task in graphs.tasks:
            found, plain = graphs.own(task), wanted.own(wanted.tasks[task.index])
            assert found.path.name == plain.path.name
            assert bytes_of(found.path) == bytes_of(plain.path)


def test_dropped_nodes_are_no_context(drawn, tmp_path):
    graph = write(tmp_path / "store", drawn)
    gone = np.flatnonzero(drawn[1] < 0)[::3]
    left = drop(graph, gone)
    assert np.intersect1d(unlabelled_nodes(left).ids(), gone).size == 0
    assert len(unlabelled_nodes(left)) == np.count_nonzero(drawn[1] < 0) - gone.size
    for context in ("hops:4", "all"):
        graphs = graphs_of(left, tmp_path / context, context)
        assert not any(np.isin(graphs.own(task).column(NODE), gone).any() for task in graphs.tasks)


def test_a_task_of_an_older_generation_has_the_context_of_then(drawn, tmp_path):
    edges, y, x = drawn
    first = write(tmp_path / "grown", (edges[:, (edges < 120).all(axis=0)], y[:120], x[:120]))
    before = graphs_of(first, tmp_path / "before", "hops:3")
    wanted = [before.own(task).column(NODE) for task in before.tasks]
    stream = before.tasks
    grown = first.append(edges[:, (edges >= 120).any(axis=0)], x[120:], y[120:], num_nodes=len(y) - 120)
    after = TaskGraphs(grown, stream, tmp_path / "after", at(), context=ContextRule(3))
    for task, nodes in zip(stream, wanted, strict=True):
        np.testing.assert_array_equal(after.own(task).column(NODE), nodes)


def test_kept_graphs_keep_their_context_when_it_has_gone_from_the_store(drawn, tmp_path):
    graph = write(tmp_path / "store", drawn)
    kept = graphs_of(graph, tmp_path / "tests", "hops:2", are_kept=True)
    wanted = [kept.own(task).column(NODE) for task in kept.tasks]
    left = drop(graph, np.flatnonzero(drawn[1] < 0))
    again = TaskGraphs(left, kept.tasks, tmp_path / "tests", at(), context=ContextRule(2), are_kept=True)
    for task, nodes in zip(kept.tasks, wanted, strict=True):
        np.testing.assert_array_equal(again.node_ids(task), nodes)
        np.testing.assert_array_equal(again.own(task).column(NODE), nodes)
    (tmp_path / "tests/task-0000.ecgl").rename(tmp_path / "other")
    (tmp_path / "tests/task-0001.ecgl").rename(tmp_path / "tests/task-0000.ecgl")
    mixed = TaskGraphs(graph, kept.tasks, tmp_path / "tests", at(), context=ContextRule(2), are_kept=True)
    with pytest.raises(InvalidInputError, match="of another task"):
        mixed.own(kept.tasks[0])


@pytest.mark.parametrize("context", ["hops:2", "all"])
def test_graphs_have_the_same_bytes_whoever_makes_them_with_what_memory(graph, tmp_path, context):
    ways = {
        "plain": at(threads=1),
        "threads": at(threads=4),
        "scripted": at("2GiB", 2, executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work"),
    }
    made = []
    for name, resources in ways.items():
        graphs = graphs_of(graph, tmp_path / name, context, resources)
        graphs.prepare(list(graphs.tasks))
        made.append({task.index: bytes_of(graphs.own(task).path) for task in graphs.tasks})
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("context", RULES[1:])
def test_counted_sizes_are_those_of_the_graphs(graph, tmp_path, context):
    graphs, sizes = graphs_of(graph, tmp_path, context), ContextSizes()
    degrees = graph.edges.in_degrees()
    counted = sizes.own(graph, graphs.tasks, graphs.context, degrees, 1)
    for task, size in zip(graphs.tasks, counted.sizes, strict=True):
        found = graphs.own(task)
        assert size.num_nodes == found.num_nodes
        assert size.num_edges == degrees[found.column(NODE)].sum() >= found.num_edges
    largest = max(graphs.tasks, key=lambda task: graphs.own(task).num_nodes)
    np.testing.assert_array_equal(counted.largest.ids, graphs.own(largest).column(NODE))
    seen = sizes.seen(graph, graphs.tasks, graphs.context, degrees, 1)
    assert seen.sizes[0].num_nodes == graphs.seen(graphs.tasks[-1]).num_nodes
    assert sizes.own(graph, graphs.tasks, graphs.context, degrees, 1) is counted


def test_a_graph_of_all_tasks_is_removed_once_and_made_again_when_it_is_asked_for(graph, tmp_path):
    graphs = graphs_of(graph, tmp_path, "hops:1")
    path = graphs.seen(graphs.tasks[1]).path
    for _ in range(2):
        graphs.remove_seen(graphs.tasks[1])
        assert not path.exists()
    assert graphs.seen(graphs.tasks[1]).path == path
    graphs.remove_seen(graphs.tasks[1])
    assert not path.exists()


def test_sets_of_nodes_are_intersected_and_subtracted():
    one, two = NodeSet(200), NodeSet(200)
    one.add(np.array([0, 63, 64, 199]))
    two.add(np.array([63, 100, 199]))
    assert (one & two).ids().tolist() == [63, 199]
    assert one.without(two).ids().tolist() == [0, 64]
