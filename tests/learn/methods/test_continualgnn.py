"""ContinualGNN: the class-quota reservoir, the penalty, the detection on a growing graph, and a whole run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.method.kept import weights_of_state
from ecgl_scale.learn.methods.continualgnn import detect_old_nodes, fill_quotas, neighbour_importance
from ecgl_scale.session.run import run
from tests.learn.methods.learning import (
    begin,
    check_goes_on,
    check_whole_run,
    fitted,
    gradients_of,
    learn,
    new_learner,
    small_config,
)
from tests.session.streams import Drawn

FEW = "continualgnn.memory_nodes=30"


def test_every_class_keeps_its_quota_of_the_nodes_seen() -> None:
    rng = np.random.default_rng(0)
    counts, labels = np.zeros(4, np.int64), np.empty(0, np.int64)
    for new in (np.repeat([0, 1], [60, 20]), np.repeat([1, 2], [20, 100]), np.repeat([3], [200])):
        filled = fill_quotas(labels, new, counts, 30, rng=rng)
        assert np.array_equal(filled.counts, counts + np.bincount(new, minlength=4))
        labels = np.concatenate([labels[filled.old], new[filled.new]])
        counts = filled.counts
        assert np.bincount(labels, minlength=4).tolist() == (30 * counts // counts.sum()).tolist()
        assert (np.diff(filled.new) > 0).all()
        assert (np.diff(filled.old) > 0).all()


def test_the_reservoir_takes_new_nodes_with_the_chance_of_their_share() -> None:
    """20 old places, 100 new nodes each with chance 10/200: about 5 try, some hit the same place."""
    replaced = []
    for seed in range(200):
        old = np.zeros(10, np.int64)
        filled = fill_quotas(old, np.zeros(100, np.int64), np.array([100]), 10, rng=np.random.default_rng(seed))
        replaced.append(filled.new.size)
    expected = 10 * (1 - (1 - 0.05 * 0.1) ** 100)
    assert np.mean(replaced) == pytest.approx(expected, abs=0.3)


def test_important_nodes_are_kept_more_often() -> None:
    for importance in (0.0, 0.5):
        draws = [
            fill_quotas(
                np.zeros(10, np.int64),
                np.zeros(1, np.int64),
                np.array([100]),
                10,
                importance=np.array([importance]),
                alpha=4.0,
                rng=np.random.default_rng(seed),
            )
            for seed in range(2000)
        ]
        chance = 10 / 101 * (1 + 4 * importance)
        assert np.mean([filled.new.size for filled in draws]) == pytest.approx(chance, abs=0.04)


def test_a_class_over_its_quota_loses_any_of_its_nodes() -> None:
    kept = np.zeros(10)
    for seed in range(400):
        rng = np.random.default_rng(seed)
        filled = fill_quotas(np.zeros(10, np.int64), np.full(100, 1), np.array([100, 0]), 10, rng=rng)
        assert filled.old.size == 5
        kept[filled.old] += 1
    assert kept == pytest.approx(np.full(10, 200), abs=50)


def test_importance_is_the_share_of_labelled_neighbours_with_another_label(
    store: Path, cache: Path, drawn: Drawn, tmp_path: Path
) -> None:
    learner = new_learner(small_config(store, cache, "continualgnn"), tmp_path)
    task = learner.stream[0]
    learner.context.task = task
    graph, nodes = learner.context.graph(task)
    found = neighbour_importance(graph, nodes, task, learner.context)
    known = set(task.train_ids.tolist())
    for node, value in zip(task.train_ids.tolist(), found.tolist(), strict=True):
        near = [u for u in drawn.edge_index[0][drawn.edge_index[1] == node].tolist() if u in known]
        share = np.mean([drawn.y[u] != drawn.y[node] for u in near]) if near else 0.0
        assert value == pytest.approx(1 / (1 + np.exp(5 - 10 * share)))


def test_the_memory_is_the_reservoir_of_all_tasks(store: Path, cache: Path, tmp_path: Path) -> None:
    kept = {}
    for alpha in (0.0, 8.0):
        keys = (FEW, f"continualgnn.alpha={alpha}")
        learner = new_learner(small_config(store, cache, "continualgnn", *keys), tmp_path / str(alpha))
        task = learner.stream[0]
        learn(learner, 0)
        kept[alpha] = learner.method.state()["node_ids"]
        graph, nodes = learner.context.graph(task)
        filled = fill_quotas(
            np.empty(0, np.int64),
            learner.stream.labels_of(task.train_ids),
            np.zeros(6, np.int64),
            30,
            importance=neighbour_importance(graph, nodes, task, learner.context),
            alpha=alpha,
            rng=np.random.default_rng((0, 0)),
        )
        assert kept[alpha].tolist() == task.train_ids[filled.new].tolist()
        learn(learner, 1, 2)
        counts = np.bincount(learner.stream.labels_of(np.concatenate([task.train_ids for task in learner.stream])))
        labels = learner.method.state()["label"]
        assert np.bincount(labels, minlength=6).tolist() == (30 * counts // counts.sum()).tolist()
    assert kept[0.0].tolist() != kept[8.0].tolist()


@pytest.mark.parametrize("setting", ["class-il", "task-il"])
def test_the_penalty_is_half_lambda_times_importance_times_squared_distance(
    store: Path, cache: Path, tmp_path: Path, setting: str
) -> None:
    config = small_config(store, cache, "continualgnn", FEW, f"setting={setting}")
    learner = new_learner(config, tmp_path)
    learn(learner, 0)
    state, context = learner.method.state(), learner.context
    stars = [parameter.detach().clone() for parameter in learner.weights.parameters()]
    begin(learner, 1)
    stars = fitted(stars, learner)
    (new, memory) = learner.method.segments(context)
    assert new.coefficients.sum() + memory.coefficients.sum() == pytest.approx(1)
    # The gradient of the mean CE on the memory, at the last weights and with the classes seen then.
    context.task = learner.stream[0]
    rows = torch.from_numpy(state["rows"])
    logits = learner.weights.mlp(rows)[:, :2]
    weights = 1 / np.bincount(state["label"])[state["label"]]
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(state["label"]), reduction="none")
    loss = (losses * torch.from_numpy((weights / weights.sum()).astype(np.float32))).sum()
    fisher = [gradient.square() for gradient in torch.autograd.grad(loss, learner.weights.parameters())]
    context.task = learner.stream[1]
    penalty = learner.method.penalty(context)
    assert penalty is not None
    with torch.no_grad():
        for parameter in learner.weights.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.1)
    pairs = zip(learner.weights.parameters(), stars, fisher, strict=True)
    wanted = 40 * sum(float((f * (w.detach() - star).square()).sum()) for w, star, f in pairs)
    assert float(penalty(learner.weights).detach()) == pytest.approx(wanted, rel=1e-4)
    for parameter in learner.weights.parameters():
        parameter.grad = None
    penalty(learner.weights).backward()
    for found, (w, star, f) in zip(
        gradients_of(learner), zip(learner.weights.parameters(), stars, fisher, strict=True), strict=True
    ):
        assert torch.allclose(found, 80 * f * (w - star), rtol=1e-4, atol=1e-7)


def test_detection_finds_the_old_nodes_that_the_change_reaches(
    store: Path, cache: Path, drawn: Drawn, tmp_path: Path
) -> None:
    overrides = (FEW, "tasks.inter_task_edges=true", "learn.scale=none")
    learner = new_learner(small_config(store, cache, "continualgnn", *overrides), tmp_path)
    learn(learner, 0)
    before = weights_of_state(learner.method.state(), "before", learner.weights)
    learner.predictor.prepare(learner.stream[1])
    learner.context.task = learner.stream[1]
    seen = np.sort(np.concatenate([task.node_ids for task in learner.stream[:2]]))
    old = np.isin(seen, learner.stream[0].node_ids)
    adjacency = np.zeros((len(drawn.y),) * 2)
    adjacency[drawn.edge_index[1], drawn.edge_index[0]] = 1
    now = adjacency[np.ix_(seen, seen)] + np.eye(seen.size)
    was = now * (old[:, None] & old[None, :])
    np.fill_diagonal(was, 1)
    layers = [(w.astype(np.float64), b) for w, b in before.arrays()]

    def outputs(inner: np.ndarray) -> np.ndarray:
        p = inner / np.sqrt(inner.sum(1)[:, None] * inner.sum(0)[None])
        hidden = np.maximum(p @ (drawn.x[seen] @ layers[0][0].T + layers[0][1]), 0)
        return np.asarray(p @ (hidden @ layers[1][0].T + layers[1][1]))

    changed = ~old | (now[:, ~old].sum(axis=1) > 0)
    delta = np.where(changed, np.abs(outputs(now) - outputs(was)).sum(axis=1), 0)
    mean = now / now.sum(axis=1, keepdims=True)
    score = mean @ mean @ delta
    reached = np.flatnonzero(score > 0)
    order = reached[np.argsort(-score[reached])]
    train_ids = learner.stream[0].train_ids
    sizes = []
    for ratio in (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        best = order[: int(ratio * reached.size)]
        wanted = np.intersect1d(np.union1d(seen[best], seen[changed]), train_ids)
        assert detect_old_nodes(learner.context, before, ratio).tolist() == wanted.tolist()
        sizes.append(wanted.size)
    assert 0 < sizes[0] < sizes[-2] < sizes[-1]


def test_detection_with_features_that_have_passed_the_edges_is_refused(
    store: Path, cache: Path, tmp_path: Path
) -> None:
    keys = ("tasks.inter_task_edges=true", "learn.features=propagated:1")
    with pytest.raises(UsageError, match=r"learn.features is .*continualgnn"):
        run(small_config(store, cache, "continualgnn", *keys), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_detected_nodes_are_trained_with_the_new_ones(backbone: str, store: Path, cache: Path, tmp_path: Path) -> None:
    overrides = (FEW, "tasks.inter_task_edges=true", f"learn.train_as={backbone}", "learn.balance=none")
    learner = new_learner(small_config(store, cache, "continualgnn", *overrides), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    segments = learner.method.segments(learner.context)
    before = weights_of_state(learner.method.state(), "before", learner.weights)
    detected = detect_old_nodes(learner.context, before, 0.8)
    total = learner.stream[1].train_ids.size + detected.size + 29  # 30 nodes by shares that are rounded down
    assert sum(segment.num_rows for segment in segments) == total
    for segment in segments:
        assert np.allclose(segment.coefficients, 1 / total)


def test_without_edges_to_old_nodes_nothing_is_detected(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "continualgnn", FEW), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    sizes = [segment.num_rows for segment in learner.method.segments(learner.context)]
    assert sizes == [learner.stream[1].train_ids.size, 29]  # 30 nodes by shares that are rounded down


@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_a_stopped_run_ends_as_an_undisturbed_one(backbone: str, store: Path, cache: Path, tmp_path: Path) -> None:
    config = small_config(store, cache, "continualgnn", FEW, f"learn.train_as={backbone}", "continualgnn.alpha=1.0")
    check_goes_on(config, tmp_path)
    check_whole_run(config, tmp_path / "run")


def test_a_memory_too_small_for_a_node_of_any_class_is_fine_tuning(store: Path, cache: Path, tmp_path: Path) -> None:
    matrices = [
        run(small_config(store, cache, method, "continualgnn.memory_nodes=1"), tmp_path / method)["matrix"]
        for method in ("continualgnn", "finetune")
    ]
    assert matrices[0] == matrices[1]
