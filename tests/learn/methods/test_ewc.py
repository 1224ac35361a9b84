"""EWC: the Fisher against each node's own gradient, and the penalty against the sum over tasks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ecgl_scale.learn.fisher import row_squares
from tests.learn.methods.learning import (
    SETTINGS,
    batch_loss,
    begin,
    check_goes_on,
    check_whole_run,
    fitted,
    gradients_of,
    learn,
    new_learner,
    row_losses,
    small_config,
    train,
    weights_of,
)


def task_segment(learner, index):
    learner.context.task = learner.stream[index]
    (segment,) = learner.method.segments(learner.context)
    return segment


def naive_fisher(learner, segment):
    """sum_i c_i (dl_i/dw)^2, a backward pass a row."""
    parameters = learner.weights.parameters()
    losses = row_losses(learner, segment)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for loss, coefficient in zip(losses, segment.coefficients, strict=True):
        for square, gradient in zip(total, torch.autograd.grad(loss, parameters, retain_graph=True), strict=True):
            square.add_(float(coefficient) * gradient**2)
    return total


def naive_batch(learner, segment):
    loss = batch_loss(learner, segment)
    return [gradient**2 for gradient in torch.autograd.grad(loss, learner.weights.parameters())]


@pytest.mark.parametrize("setting", ["task-il", "class-il"])
def test_the_fisher_is_the_mean_of_each_rows_squared_gradient(store, cache, tmp_path, setting):
    learner = new_learner(small_config(store, cache, "ewc", f"setting={setting}"), tmp_path)
    learn(learner, 0)
    segment = task_segment(learner, 0)
    assert segment.coefficients.sum() == pytest.approx(1)
    for found, wanted in zip(learner.method._anchors.strengths, naive_fisher(learner, segment), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-9)
    for found, wanted in zip(learner.method._anchors.places, weights_of(learner), strict=True):
        assert torch.equal(found, wanted)


def test_on_a_graph_random_signs_estimate_the_fisher(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "ewc", "learn.train_as=gcn"), tmp_path)
    learn(learner, 0)
    segment = task_segment(learner, 0)
    wanted = torch.cat([square.reshape(-1) for square in naive_fisher(learner, segment)])
    found = torch.cat([t.reshape(-1) for t in row_squares(learner.trainer, segment, draws=600, seed=1)])
    # Each is off by sqrt(2 / draws) = 5.8 % of itself on average.
    assert float((found - wanted).norm() / wanted.norm()) < 0.15
    assert float(found.sum() / wanted.sum()) == pytest.approx(1, rel=0.15)


def test_as_many_signs_are_drawn_as_the_config_says(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "ewc", "learn.train_as=gcn", "ewc.draws=3"), tmp_path)
    learn(learner, 0)
    wanted = row_squares(learner.trainer, task_segment(learner, 0), draws=3, seed=(learner.config.seed, 0))
    assert all(map(torch.equal, learner.method._anchors.strengths, wanted))


@pytest.mark.parametrize("train_as", ["mlp", "gcn"])
def test_as_the_public_code_it_is_the_square_of_the_batchs_gradient(store, cache, tmp_path, train_as):
    keys = ("ewc.reference=true", f"learn.train_as={train_as}")
    learner = new_learner(small_config(store, cache, "ewc", *keys), tmp_path)
    learn(learner, 0)
    for found, wanted in zip(
        learner.method._anchors.strengths, naive_batch(learner, task_segment(learner, 0)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-10)


def test_the_penalty_is_the_sum_over_old_tasks(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "ewc", "ewc.lambda=3"), tmp_path)
    kept = []
    for index in (0, 1):
        learn(learner, index)
        kept.append((weights_of(learner), naive_fisher(learner, task_segment(learner, index))))
    begin(learner, 2)
    train(learner, 2, range(1))
    learner.trainer.gradient(learner._segments)
    plain = gradients_of(learner)
    parameters = learner.weights.parameters()
    naive = 3 * sum(
        (f * (p - w) ** 2).sum()
        for weights, fisher in kept
        for p, w, f in zip(parameters, fitted(weights, learner), fitted(fisher, learner), strict=True)
    )
    wanted = torch.autograd.grad(naive, parameters)
    value = learner._penalty(learner.weights)
    assert float(value.detach()) == pytest.approx(float(naive.detach()), rel=1e-4)
    value.backward()
    for found, before, added in zip(gradients_of(learner), plain, wanted, strict=True):
        torch.testing.assert_close(found, before + added, rtol=1e-3, atol=1e-6)


def test_the_public_codes_balance_ends_with_the_first_task(store, cache, tmp_path):
    for reference, setting, is_even in [
        ("true", "task-il", True),
        ("true", "class-il", False),
        ("false", "task-il", False),
    ]:
        keys = (f"ewc.reference={reference}", f"setting={setting}")
        learner = new_learner(small_config(store, cache, "ewc", *keys), tmp_path / f"{reference}{setting}")
        for index in (0, 1):
            begin(learner, index)
            segment = task_segment(learner, index)
            counts = np.bincount(segment.labels)[segment.labels]
            balanced = 1 / counts / (1 / counts).sum()
            even = np.full(segment.num_rows, 1 / segment.num_rows)
            assert np.abs(balanced - even).max() > 1e-3
            wanted = even if is_even and index else balanced
            np.testing.assert_allclose(segment.coefficients, wanted, rtol=1e-5)


def test_without_balance_a_sum_stays_a_sum(store, cache, tmp_path):
    keys = ("ewc.reference=true", "setting=task-il", "learn.balance=none", "learn.reduction=sum")
    learner = new_learner(small_config(store, cache, "ewc", *keys), tmp_path)
    begin(learner, 1)
    assert (task_segment(learner, 1).coefficients == 1).all()


def test_a_strong_penalty_keeps_the_weights_that_matter(store, cache, tmp_path):
    moved = {}
    for strength in (0, 1e6):
        learner = new_learner(small_config(store, cache, "ewc", f"ewc.lambda={strength}"), tmp_path / str(strength))
        learn(learner, 0)
        start, fisher = weights_of(learner), [f.clone() for f in learner.method._anchors.strengths]
        learn(learner, 1)
        moved[strength] = sum(
            float((f * (now - then) ** 2).sum())
            for f, now, then in zip(fitted(fisher, learner), weights_of(learner), fitted(start, learner), strict=True)
        )
    assert moved[1e6] < 0.5 * moved[0]


@pytest.mark.parametrize("reference", ["true", "false"])
@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_a_whole_run(store, cache, tmp_path, setting, train_as, reference):
    keys = (f"setting={setting}", f"learn.train_as={train_as}", f"ewc.reference={reference}", "learn.epochs=2")
    check_whole_run(small_config(store, cache, "ewc", *keys), tmp_path / "run")


@pytest.mark.parametrize("train_as", ["mlp", "gcn"])
def test_it_goes_on_after_a_stop(store, cache, tmp_path, train_as):
    check_goes_on(small_config(store, cache, "ewc", f"learn.train_as={train_as}"), tmp_path)
