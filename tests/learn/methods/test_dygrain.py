"""DyGRAIN as reconstructed: which nodes are influenced, which are forgotten, their distillation, and a whole run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from ecgl_scale.learn.method.kept import weights_of_state
from ecgl_scale.learn.method.table import built_in_methods
from ecgl_scale.learn.methods.dygrain import Distillation, Dygrain, influenced_nodes
from tests.learn.methods.learning import begin, check_goes_on, check_whole_run, learn, new_learner, small_config
from tests.session.streams import Drawn, write_store


def test_it_says_that_it_is_a_reconstruction() -> None:
    assert built_in_methods()["dygrain"] is Dygrain
    assert "reconstruction" in Dygrain.reference
    assert "reconstruction" in (Dygrain.__doc__ or "").lower()


@pytest.mark.parametrize(("every", "count"), [(1, 12), (12, 100)])
def test_influence_is_a_walk_from_the_new_nodes(
    every: int, count: int, cache: Path, drawn: Drawn, tmp_path: Path
) -> None:
    """With few edges there are more places than nodes that are influenced at all."""
    drawn = replace(drawn, edge_index=drawn.edge_index[:, ::every])
    store = write_store(tmp_path / "graph.ecgl", drawn)
    keys = ("tasks.inter_task_edges=true", f"dygrain.nodes={count}", "dygrain.restart=0.4")
    config = small_config(store, cache, "dygrain", *keys)
    learner = new_learner(config, tmp_path)
    task = learner.stream[1]
    learner.predictor.prepare(task)
    learner.context.task = task
    seen = np.sort(np.concatenate([one.node_ids for one in learner.stream[:2]]))
    adjacency = np.zeros((len(drawn.y),) * 2)
    adjacency[drawn.edge_index[1], drawn.edge_index[0]] = 1
    mean = adjacency[np.ix_(seen, seen)] + np.eye(seen.size)
    mean /= mean.sum(axis=1, keepdims=True)
    start = np.isin(seen, task.node_ids).astype(np.float64)
    score = sum(0.4 * 0.6**k * (np.linalg.matrix_power(mean, k) @ start) for k in range(3))
    old = np.flatnonzero(np.isin(seen, learner.stream[0].train_ids))
    best = old[np.argsort(-score[old], kind="stable")][:count]
    best = best[score[best] > 0]
    assert 0 < best.size < old.size
    found = influenced_nodes(learner.context)
    assert found.tolist() == np.sort(seen[best]).tolist()
    assert set(found.tolist()) <= set(learner.stream[0].train_ids.tolist())


@pytest.mark.parametrize("setting", ["class-il", "task-il"])
def test_forgotten_nodes_are_distilled_with_the_truth(setting: str, store: Path, cache: Path, tmp_path: Path) -> None:
    weights = ("dygrain.lambda=2.0", "dygrain.temperature=3.0", "dygrain.truth=0.3")
    overrides = (f"setting={setting}", "dygrain.nodes=9", *weights)
    learner = new_learner(small_config(store, cache, "dygrain", *overrides), tmp_path)
    learn(learner, 0, 1)
    bank = learner.bank
    bank.label[::2] ^= 1  # whatever the teacher has learned, it is wrong about some
    teacher = weights_of_state(learner.method.state(), "teacher", learner.weights)
    begin(learner, 2)
    term = learner.method.penalty(learner.context)
    assert isinstance(term, Distillation)
    assert float(term(learner.weights).detach()) == 0  # nothing is forgotten yet
    with torch.no_grad():
        for parameter in learner.weights.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.3)
    x, labels = torch.from_numpy(bank.dense_rows()), torch.from_numpy(bank.label)
    rises, parts, is_right = [], [], []
    for row in range(len(bank)):
        own = slice(2 * int(bank.task[row]), 2 * int(bank.task[row]) + 2)
        allowed = own if setting == "task-il" else slice(0, 6)
        known = own if setting == "task-il" else slice(0, 4)
        z, old = learner.weights.mlp(x[row : row + 1]).detach()[0], teacher.mlp(x[row : row + 1]).detach()[0]
        losses = [float(cross_entropy(one[allowed], labels[row] - allowed.start)) for one in (z, old)]
        rises.append(losses[0] - losses[1])
        q, p = log_softmax(old[known] / 3, 0), log_softmax(z[known] / 3, 0)
        distance = 9 * float((q.exp() * (q - p)).sum())
        is_right.append(int(old[known].argmax()) + known.start == int(labels[row]))
        parts.append(0.7 * distance * is_right[-1] + 0.3 * losses[0])
    wanted = [row for row in np.argsort(-np.array(rises))[:9].tolist() if rises[row] > 0]
    assert term.forgotten(learner.weights).tolist() == sorted(wanted)
    assert {is_right[row] for row in wanted} == {False, True}
    mean = np.mean([parts[row] for row in wanted])
    assert float(term(learner.weights).detach()) == pytest.approx(2 * mean, rel=1e-4)
    for parameter in learner.weights.parameters():
        parameter.grad = None
    term(learner.weights).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in learner.weights.parameters())
    assert any(parameter.grad.abs().max() > 0 for parameter in learner.weights.parameters())


def test_the_teacher_is_the_model_before_the_task_and_never_changes(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "dygrain"), tmp_path)
    learn(learner, 0)
    kept = {name: array.copy() for name, array in learner.method.state().items()}
    for index, parameter in enumerate(learner.weights.parameters()):
        assert np.array_equal(kept[f"teacher.{index}"], parameter.detach().numpy())
    begin(learner, 1)
    learner.train_epoch(learner.stream[1], 0)
    assert all(np.array_equal(kept[name], array) for name, array in learner.method.state().items())


def test_the_bank_has_as_many_nodes_of_each_class(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "dygrain"), tmp_path)
    learn(learner, 0, 1)
    assert np.bincount(learner.bank.label).tolist() == [6, 6, 6, 6]
    for task in learner.stream[:2]:
        assert np.isin(learner.bank.for_tasks([task.index]).node_ids, task.train_ids).all()


@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_influenced_nodes_are_trained_with_the_new_ones(
    backbone: str, store: Path, cache: Path, tmp_path: Path
) -> None:
    overrides = ("tasks.inter_task_edges=true", f"learn.train_as={backbone}", "dygrain.nodes=7")
    learner = new_learner(small_config(store, cache, "dygrain", *overrides), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    segments = learner.method.segments(learner.context)
    labels = np.concatenate([segment.labels for segment in segments])
    assert labels.size == learner.stream[1].train_ids.size + 7
    assert np.count_nonzero(labels < 2) == 7


@pytest.mark.parametrize("overrides", [("learn.train_as=mlp",), ("learn.train_as=gcn", "tasks.inter_task_edges=true")])
def test_a_stopped_run_ends_as_an_undisturbed_one(
    overrides: tuple[str, ...], store: Path, cache: Path, tmp_path: Path
) -> None:
    config = small_config(store, cache, "dygrain", *overrides)
    check_goes_on(config, tmp_path)
    check_whole_run(config, tmp_path / "run")
