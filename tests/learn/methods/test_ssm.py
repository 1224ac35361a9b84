"""SSM: the nodes and edges that are stored, the losses over them, and a whole run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.methods.ssm import Ssm, add_neighbours, edges_among
from ecgl_scale.store.graph import GraphStore
from tests.learn.methods.learning import begin, check_goes_on, check_whole_run, learn, new_learner, small_config


def edge_set(graph: GraphStore) -> set[tuple[int, int]]:
    source, target = graph.to_edge_index()
    return {(int(s), int(t)) for s, t in zip(source, target, strict=True) if s != t}


def test_stored_edges_are_those_among_the_stored_nodes(store: Path) -> None:
    graph = GraphStore.open(store)
    local = np.sort(np.random.default_rng(1).choice(graph.num_nodes, 60, replace=False))
    indptr, indices = edges_among(graph, local)
    found = {(int(local[indices[p]]), int(local[i])) for i in range(60) for p in range(indptr[i], indptr[i + 1])}
    assert found == {(s, t) for s, t in edge_set(graph) if s in set(local.tolist()) and t in set(local.tolist())}
    assert found


@pytest.mark.parametrize("by_degree", [False, True])
def test_every_node_adds_at_most_its_budget_of_in_neighbours(store: Path, by_degree: bool) -> None:
    graph = GraphStore.open(store)
    edges, everyone = edge_set(graph), np.arange(graph.num_nodes)
    centres = np.array([3, 50, 120])
    rng = np.random.default_rng(0)
    first = add_neighbours(graph, centres, (2,), everyone, by_degree=by_degree, rng=rng)
    hop = set(first.tolist()) - set(centres.tolist())
    assert 0 < len(hop) <= 6
    assert all(any((node, int(centre)) in edges for centre in centres) for node in hop)
    assert add_neighbours(graph, centres, (0, 5), everyone, by_degree=by_degree, rng=rng).tolist() == centres.tolist()
    assert add_neighbours(graph, centres, (9, 9), centres, by_degree=by_degree, rng=rng).tolist() == centres.tolist()
    all_within_two = add_neighbours(graph, centres, (99, 99), everyone, by_degree=by_degree, rng=rng)
    wanted = set(centres.tolist())
    for _ in range(2):
        wanted |= {s for s, t in edges if t in wanted}
    assert set(all_within_two.tolist()) == wanted


def test_neighbours_by_degree_are_drawn_in_proportion(tmp_path: Path) -> None:
    source, target = [1, 2], [0, 0]
    for leaf in range(3, 12):  # node 1 has in-degree 9, node 2 none
        source, target = [*source, leaf], [*target, 1]
    graph = GraphStore.from_edge_index(np.array([source, target]), path=tmp_path / "star", num_nodes=12)
    rng = np.random.default_rng(0)
    everyone = np.arange(12)
    drawn = [add_neighbours(graph, np.array([0]), (1,), everyone, by_degree=True, rng=rng)[1] for _ in range(300)]
    assert np.mean(np.array(drawn) == 1) == pytest.approx(10 / 11, abs=0.06)


@pytest.mark.parametrize("setting", ["class-il", "task-il"])
def test_the_loss_over_stored_graphs_is_that_of_message_passing_on_them(
    setting: str, store: Path, cache: Path, tmp_path: Path
) -> None:
    overrides = (f"setting={setting}", "learn.train_as=gcn", "ssm.centre_nodes=6", "ssm.neighbours=[2, 1]")
    learner = new_learner(small_config(store, cache, "ssm", "learn.lambda=3", *overrides), tmp_path)
    learn(learner, 0, 1)
    begin(learner, 2)
    new, stored = learner.method.segments(learner.context)
    assert isinstance(new, GraphSegment)
    assert isinstance(stored, GraphSegment)
    state = learner.method.state()
    assert isinstance(learner.method, Ssm)
    assert state["is_centre"].sum() == 24
    assert state["is_centre"].size > 24
    if setting == "class-il":
        assert new.coefficients.sum() + stored.coefficients.sum() == pytest.approx(1)
        assert np.flatnonzero(stored.columns).tolist() == [0, 1, 2, 3, 4, 5]
    else:
        assert new.coefficients.sum() == pytest.approx(1)
        tasks = state["task"][state["is_centre"]]
        for task in (0, 1):  # a mean for each old task
            assert stored.coefficients[tasks == task].sum() == pytest.approx(3)
    size = state["is_centre"].size
    adjacency = np.eye(size)
    for i in range(size):
        adjacency[i, state["edges.indices"][state["edges.indptr"][i] : state["edges.indptr"][i + 1]]] = 1
    p = adjacency / np.sqrt(adjacency.sum(1)[:, None] * adjacency.sum(0)[None])
    (w1, b1), (w2, b2) = ((w.astype(np.float64), b) for w, b in learner.weights.arrays())
    hidden = np.maximum(p @ (state["rows"] @ w1.T + b1), 0)
    logits = p @ (hidden @ w2.T + b2)
    found = stored.logits(learner.weights).detach().numpy()
    wanted = logits[np.flatnonzero(state["is_centre"])]
    assert np.allclose(found, wanted[:, stored.head_columns], atol=1e-5)


def test_stored_edges_of_every_task_are_those_of_its_graph(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "ssm", "ssm.centre_nodes=6", "ssm.neighbours=[2, 1]"), tmp_path)
    learn(learner, 0, 1)
    state = learner.method.state()
    ids, tasks = state["node_ids"], state["task"]
    targets = np.repeat(np.arange(ids.size), np.diff(state["edges.indptr"]))
    found = {(int(ids[s]), int(ids[t])) for s, t in zip(state["edges.indices"], targets, strict=True)}
    of_task = dict(zip(ids.tolist(), tasks.tolist(), strict=True))
    edges = edge_set(GraphStore.open(store))
    assert found == {(s, t) for s, t in edges if s in of_task and t in of_task and of_task[s] == of_task[t]}
    assert all(any(of_task[t] == task for _, t in found) for task in (0, 1))


def test_only_training_nodes_have_labels_in_the_memory(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "ssm", "ssm.centre_nodes=5", "ssm.neighbours=[3]"), tmp_path)
    learn(learner, 0)
    state = learner.method.state()
    centres = state["node_ids"][state["is_centre"]]
    assert set(centres.tolist()) <= set(learner.stream[0].train_ids.tolist())
    assert np.array_equal(state["label"][state["is_centre"]], learner.stream.labels_of(centres))
    assert np.bincount(state["label"][state["is_centre"]]).tolist() == [5, 5]
    assert not state["label"][~state["is_centre"]].any()


def test_the_state_makes_the_same_segments(store: Path, cache: Path, tmp_path: Path) -> None:
    config = small_config(store, cache, "ssm", "learn.train_as=gcn", "ssm.neighbours=[2]")
    learner = new_learner(config, tmp_path)
    learn(learner, 0)
    other = Ssm()
    other.load_state(learner.method.state())
    begin(learner, 1)
    first, second = (method.segments(learner.context)[1] for method in (learner.method, other))
    assert torch.equal(first.logits(learner.weights), second.logits(learner.weights))
    assert np.array_equal(first.coefficients, second.coefficients)


@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_a_stopped_run_ends_as_an_undisturbed_one(backbone: str, store: Path, cache: Path, tmp_path: Path) -> None:
    config = small_config(store, cache, "ssm", f"learn.train_as={backbone}", "ssm.neighbours=[2]", "ssm.select=degree")
    check_goes_on(config, tmp_path)
    check_whole_run(config, tmp_path / "run")
