"""CaT: the matching loss, that condensing lowers it, that only condensed nodes are trained on, and a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.graph.propagate import one_hop_features
from ecgl_scale.learn.loss import Segment
from ecgl_scale.learn.method.kept import draw_per_class
from ecgl_scale.learn.methods import cat
from ecgl_scale.learn.methods.cat import Cat, Condenser, share_nodes
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.tasks.graphs import positions_of
from tests.learn.methods.learning import begin, check_goes_on, check_whole_run, learn, new_learner, small_config
from tests.resources import at
from tests.session.streams import Drawn

SMALL = ("cat.nodes=10", "cat.steps=40", "cat.hidden=[16]", "cat.lr=0.02")


@pytest.fixture
def config(store: Path, cache: Path) -> RunConfig:
    return small_config(store, cache, "cat", *SMALL)


def naive_means(encoder: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    h = x.astype(np.float64)
    for weight, bias in encoder:
        h = np.maximum(h @ weight.T + bias, 0)
    h /= np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1e-12)
    return np.array([h[labels == label].mean(axis=0) for label in np.unique(labels)])


@pytest.mark.parametrize("hidden", ["[16]", "[16, 8]"])
def test_the_loss_is_the_distance_of_class_means_of_normalised_embeddings(
    store: Path, cache: Path, hidden: str
) -> None:
    rng = np.random.default_rng(0)
    real, labels = rng.normal(size=(50, 8)).astype(np.float32), rng.integers(0, 3, 50)
    made, made_labels = rng.normal(size=(9, 8)).astype(np.float32), np.repeat([0, 1, 2], 3)
    settings = small_config(store, cache, "cat", f"cat.hidden={hidden}")
    condenser = Condenser(RowCache.from_array(real), labels, settings, device=torch.device("cpu"))
    encoders = [condenser.encoder((step,)) for step in range(3)]
    for encoder, means in zip(encoders, condenser.real_means(encoders, rng), strict=True):
        layers = [(w, b) for w, b in encoder.arrays() if b is not None]
        wanted = naive_means(layers, real, labels)
        assert np.allclose(means.numpy(), wanted, atol=1e-5)
        loss = condenser.loss(encoder, means, torch.from_numpy(made), made_labels).detach()
        assert float(loss) == pytest.approx(np.square(wanted - naive_means(layers, made, made_labels)).sum(), rel=1e-4)
    assert not torch.equal(encoders[0].layers[0][0], encoders[1].layers[0][0])


def test_drawn_real_nodes_are_so_many_of_each_class(store: Path, cache: Path) -> None:
    rng = np.random.default_rng(0)
    real, labels = rng.normal(size=(50, 8)).astype(np.float32), np.repeat([0, 1], [10, 40])
    settings = small_config(store, cache, "cat", "cat.hidden=[16]", "cat.real_nodes=10")
    condenser = Condenser(RowCache.from_array(real), labels, settings, device=torch.device("cpu"))
    encoder = condenser.encoder((0,))
    (means,) = condenser.real_means([encoder], np.random.default_rng(1))
    layers = [(w, b) for w, b in encoder.arrays() if b is not None]
    assert np.allclose(means[0], naive_means(layers, real, labels)[0], atol=1e-5)  # all ten are drawn
    assert not np.allclose(means[1], naive_means(layers, real, labels)[1], atol=1e-5)


def test_condensing_lowers_the_matching_loss(config: RunConfig, tmp_path: Path) -> None:
    learner = new_learner(config, tmp_path)
    begin(learner, 0)
    task, context = learner.stream[0], learner.context
    (segment,) = learner.method.segments(context)
    assert isinstance(segment, Segment)
    graph, nodes = context.graph(task)
    real = RowCache.from_array(
        one_hop_features(graph, positions_of(nodes, task.train_ids), at(), path=tmp_path / "real")
    )
    labels = learner.stream.labels_of(task.train_ids)
    condenser = Condenser(real, labels, config, device=torch.device("cpu"))
    fresh = [condenser.encoder((99, step)) for step in range(20)]
    rng = np.random.default_rng((config.seed, task.index))
    chosen = draw_per_class(labels, share_nodes(labels, 10), rng)
    before = torch.from_numpy(np.asarray(context.bank_rows(task, task.train_ids[chosen])))
    after = torch.from_numpy(segment.rows.read(0, segment.num_rows))
    losses = [
        np.mean([float(condenser.loss(e, m, x, segment.labels).detach()) for e, m in zip(fresh, means, strict=True)])
        for means in [condenser.real_means(fresh, rng)]
        for x in (before, after)
    ]
    assert losses[1] < 0.5 * losses[0]


def test_shares_follow_the_training_nodes_and_no_class_is_left_out() -> None:
    labels = np.repeat([3, 5, 9], [80, 18, 2])
    assert share_nodes(labels, 10) == {3: 8, 5: 1, 9: 1}
    assert share_nodes(labels, 11) == {3: 9, 5: 1, 9: 1}
    assert share_nodes(labels, 1) == {3: 1, 5: 1, 9: 1}


@pytest.mark.parametrize("setting", ["class-il", "task-il"])
@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_a_task_is_trained_on_all_condensed_graphs_and_nothing_else(
    store: Path, cache: Path, tmp_path: Path, setting: str, backbone: str
) -> None:
    overrides = (*SMALL, f"setting={setting}", f"learn.train_as={backbone}")
    learner = new_learner(small_config(store, cache, "cat", *overrides), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    (segment,) = learner.method.segments(learner.context)
    assert isinstance(segment, Segment)
    assert segment.num_rows == 20
    assert np.bincount(segment.labels).tolist() == [6, 4, 3, 7]  # of 24 and 19, and of 14 and 22
    columns = segment.columns if segment.groups is None else segment.columns[segment.groups[0]]
    assert np.flatnonzero(columns).tolist() == ([0, 1, 2, 3] if setting == "class-il" else [0, 1])
    kept = learner.method.state()
    assert np.array_equal(kept["rows"], segment.rows.read(0, 10))  # the second is kept when its task is over


def test_propagated_features_are_the_symmetric_mean_in_any_memory(
    store: Path, cache: Path, drawn: Drawn, tmp_path: Path
) -> None:
    learner = new_learner(small_config(store, cache, "cat", "learn.scale=none"), tmp_path)
    task = learner.stream[0]
    learner.predictor.prepare(task)
    graph, nodes = learner.context.graph(task)
    adjacency = np.zeros((len(drawn.y),) * 2)
    adjacency[drawn.edge_index[1], drawn.edge_index[0]] = 1
    inner = adjacency[np.ix_(nodes, nodes)] + np.eye(nodes.size)
    wanted = (inner / np.sqrt(inner.sum(1)[:, None] * inner.sum(0)[None])) @ drawn.x[nodes]
    local = positions_of(nodes, task.train_ids)
    found = one_hop_features(graph, local, at(), path=tmp_path / "a")
    assert np.allclose(found, wanted[local], atol=1e-5)


@pytest.mark.parametrize("features", ["raw", "propagated:2"])
def test_the_real_side_has_passed_the_edges_and_the_made_one_starts_as_the_models_input(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: str
) -> None:
    given: list[np.ndarray] = []

    class Watched(Condenser):
        def __init__(self, real: RowCache, *rest: Any, **keys: Any) -> None:
            super().__init__(real, *rest, **keys)
            given.append(np.array(real.read(0, real.num_rows)))

        def match(self, rows: torch.Tensor, *rest: Any) -> None:
            given.append(rows.numpy().copy())

    monkeypatch.setattr(cat, "Condenser", Watched)
    keys = (*SMALL, "cat.steps=1", f"learn.features={features}")
    learner = new_learner(small_config(store, cache, "cat", *keys), tmp_path)
    begin(learner, 0)
    task, context = learner.stream[0], learner.context
    graph, nodes = context.graph(task)
    once = one_hop_features(graph, positions_of(nodes, task.train_ids), at(), path=tmp_path / "real")
    inputs = np.asarray(context.bank_rows(task, task.train_ids))
    real, first = given
    assert np.allclose(real, once if features == "raw" else inputs, atol=1e-5)
    assert all((inputs == row).all(axis=1).any() for row in first)


def test_condensing_is_done_once_for_a_run_that_goes_on(config: RunConfig, tmp_path: Path) -> None:
    learner = new_learner(config, tmp_path)
    begin(learner, 0)
    (first,) = learner.method.segments(learner.context)
    other = new_learner(config, tmp_path)
    other.context.task = other.stream[0]
    method = other.method
    assert isinstance(method, Cat)
    method._condense = None  # type: ignore[assignment,method-assign]
    (second,) = method.segments(other.context)
    assert np.array_equal(first.rows.read(0, 10), second.rows.read(0, 10))


@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_a_stopped_run_ends_as_an_undisturbed_one(backbone: str, store: Path, cache: Path, tmp_path: Path) -> None:
    config = small_config(store, cache, "cat", *SMALL, f"learn.train_as={backbone}")
    check_goes_on(config, tmp_path)
    check_whole_run(config, tmp_path / "run")
