"""MAS: importances of the outputs, their mean over rows seen, and the last weights as the anchor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.learn.methods.learning import (
    SETTINGS,
    begin,
    check_goes_on,
    check_whole_run,
    fitted,
    learn,
    new_learner,
    outputs_of,
    small_config,
    train,
    weights_of,
)


def naive_importance(learner, index):
    """(d mean(z^2) / dw)^2 over the training rows and the columns of the task, or of all seen."""
    task = learner.stream[index]
    learner.context.task = task
    (segment,) = learner.context.segments([task], None)
    z = outputs_of(learner, segment)
    columns = task.positions if learner.config.setting == "task-il" else learner.stream.seen_positions(task)
    return [gradient**2 for gradient in torch.autograd.grad((z[:, columns] ** 2).mean(), learner.weights.parameters())]


@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_importances_are_the_mean_of_the_tasks_by_their_rows(store, cache, tmp_path, setting, train_as):
    keys = (f"setting={setting}", f"learn.train_as={train_as}")
    learner = new_learner(small_config(store, cache, "mas", *keys), tmp_path)
    learn(learner, 0)
    first = naive_importance(learner, 0)
    for found, wanted in zip(learner.method._anchors.strengths, first, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-10)
    learn(learner, 1)
    second = naive_importance(learner, 1)
    learn(learner, 2)
    every = zip(fitted(first, learner), fitted(second, learner), naive_importance(learner, 2), strict=True)
    sizes = [task.train_ids.size for task in learner.stream]
    assert len(set(sizes)) == 3
    for found, of_tasks in zip(learner.method._anchors.strengths, every, strict=True):
        wanted = sum(size * one for size, one in zip(sizes, of_tasks, strict=True)) / sum(sizes)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-10)


def test_only_the_last_weights_are_the_anchor(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "mas", "mas.lambda=7"), tmp_path)
    learn(learner, 0, 1)
    last = weights_of(learner)
    omega = [strength.clone() for strength in learner.method._anchors.strengths]
    begin(learner, 2)
    last, omega = fitted(last, learner), fitted(omega, learner)
    assert float(learner._penalty(learner.weights).detach()) == 0
    train(learner, 2, range(2))
    wanted = 7 * sum(float((o * (p - w) ** 2).sum()) for o, p, w in zip(omega, weights_of(learner), last, strict=True))
    assert float(learner._penalty(learner.weights).detach()) == pytest.approx(wanted, rel=1e-5)


def test_labels_do_not_count(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "mas"), tmp_path)
    learn(learner, 0)
    before = [strength.clone() for strength in learner.method._anchors.strengths]
    learner.stream._head[learner.stream[0].train_ids] = learner.stream[0].positions[0]
    learner.method.load_state({"num_rows": np.array([0])})
    learner.remember(learner.stream[0])
    assert all(map(torch.equal, before, learner.method._anchors.strengths))


@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_a_whole_run(store, cache, tmp_path, setting, train_as):
    check_whole_run(
        small_config(store, cache, "mas", f"setting={setting}", f"learn.train_as={train_as}"), tmp_path / "run"
    )


@pytest.mark.parametrize("train_as", ["mlp", "gcn"])
def test_it_goes_on_after_a_stop(store, cache, tmp_path, train_as):
    check_goes_on(small_config(store, cache, "mas", f"learn.train_as={train_as}", "setting=task-il"), tmp_path)
