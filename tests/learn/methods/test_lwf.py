"""LwF: the distillation of frozen outputs, among the right columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ecgl_scale.learn.methods import lwf
from tests.learn.methods.learning import (
    SETTINGS,
    begin,
    check_goes_on,
    check_whole_run,
    learn,
    new_learner,
    small_config,
    train,
    weights_of,
)

TEMPERATURE, STRENGTH = 3.0, 1.5
KEYS = (f"lwf.temperature={TEMPERATURE}", f"lwf.lambda={STRENGTH}")


def outputs(learner, segment, weights):
    """Of all classes, for the rows of a segment."""
    model = learner.weights.copy()
    with torch.no_grad():
        model.take(weights)
        if learner.config.learn.train_as == "gcn":
            return segment.outputs(model, slice(None))
        return model.mlp(torch.from_numpy(segment.rows.read(0, segment.num_rows)))


def naive_loss(learner, segment, old, new, slices):
    """CE of the task, and H(old, new) in each slice."""
    ce = torch.nn.functional.cross_entropy(
        new[:, segment.columns],
        torch.from_numpy(np.searchsorted(np.flatnonzero(segment.columns), segment.labels)),
        reduction="none",
    )
    total = (ce * torch.from_numpy(segment.coefficients)).sum()
    for columns in slices:
        q = torch.softmax(old[:, columns] / TEMPERATURE, 1)
        p = torch.softmax(new[:, columns] / TEMPERATURE, 1)
        rows = -(q * p.log()).sum(1)
        total = total + STRENGTH * (rows.sum() if learner.config.learn.reduction == "sum" else rows.mean())
    return float(total)


@pytest.mark.parametrize("weighed", [(), ("learn.balance=none", "learn.reduction=sum")], ids=["mean", "sum"])
@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_the_loss_is_ce_and_the_distance_from_the_old_models_outputs(
    store, cache, tmp_path, setting, train_as, weighed
):
    keys = (f"setting={setting}", f"learn.train_as={train_as}", *KEYS, *weighed)
    learner = new_learner(small_config(store, cache, "lwf", *keys), tmp_path)
    learn(learner, 0, 1)
    frozen = weights_of(learner)
    begin(learner, 2)
    tasks = learner.stream.seen(learner.stream[2])[:-1]
    slices = [task.positions for task in tasks]
    if setting == "class-il":
        slices = [np.concatenate(slices)]
    (segment,) = learner._segments
    for epoch in range(3):
        old, new = outputs(learner, segment, frozen), outputs(learner, segment, weights_of(learner))
        wanted = naive_loss(learner, segment, old, new, slices)
        assert train(learner, 2, range(epoch, epoch + 1)) == pytest.approx([wanted], rel=1e-5)


def test_the_target_is_frozen_while_the_weights_move(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "lwf", *KEYS), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    (segment,) = learner._segments
    before = segment.soft.logits.read(0, segment.num_rows).copy()
    start = weights_of(learner)
    train(learner, 1)
    np.testing.assert_array_equal(segment.soft.logits.read(0, segment.num_rows), before)
    assert not torch.equal(start[0], weights_of(learner)[0])
    np.testing.assert_allclose(before, outputs(learner, segment, start)[:, [0, 1]], rtol=1e-6)


def test_outputs_that_are_too_large_go_to_a_file_and_change_nothing(store, cache, tmp_path, monkeypatch):
    config = small_config(store, cache, "lwf", *KEYS)
    held = new_learner(config, tmp_path / "held")
    learn(held, 0, 1)
    monkeypatch.setattr(lwf, "HELD_BYTES", 0)
    written = new_learner(config, tmp_path / "written")
    learn(written, 0)
    begin(written, 1)
    assert written._segments[0].soft.logits.kind == "disk"
    train(written, 1)
    for one, other in zip(weights_of(held), weights_of(written), strict=True):
        assert torch.equal(one, other)


def test_without_a_weight_it_is_fine_tuning(store, cache, tmp_path):
    plain, weightless = (
        new_learner(small_config(store, cache, method, "lwf.lambda=0"), tmp_path / method)
        for method in ("finetune", "lwf")
    )
    for learner in (plain, weightless):
        learn(learner, 0, 1)
    assert all(map(torch.equal, weights_of(plain), weights_of(weightless)))


@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_a_whole_run(store, cache, tmp_path, setting, train_as):
    keys = (f"setting={setting}", f"learn.train_as={train_as}")
    check_whole_run(small_config(store, cache, "lwf", *keys), tmp_path / "run")


@pytest.mark.parametrize("batching", ["full", "minibatch"])
def test_it_goes_on_after_a_stop(store, cache, tmp_path, batching):
    keys = (*KEYS, f"learn.batching={batching}", "learn.batch_rows=20", "setting=task-il")
    check_goes_on(small_config(store, cache, "lwf", *keys), tmp_path)
