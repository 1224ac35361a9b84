"""Tasks learned one by one with a method's hooks at hand, and what every method must do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.learn.model import padded_like
from ecgl_scale.session.learner import Learner, learn_task
from ecgl_scale.session.run import run
from ecgl_scale.session.setup import RunSetup
from tests.session.streams import config_of

FEW = ("learn.epochs=4", "learn.hidden=[6]", "threads=1", "bank.budget=12", "analytic.width=24")
SETTINGS = [(setting, train_as) for setting in ("task-il", "class-il") for train_as in ("mlp", "gcn")]


def small_config(store: Path, cache: Path, method: str, *overrides: str) -> RunConfig:
    return config_of(store, cache, f"method={method}", *FEW, *overrides)


def new_learner(config: RunConfig, directory: Path) -> Learner:
    """As a run makes it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "weights").mkdir(exist_ok=True)
    return Learner(RunSetup.open(config), directory)


def begin(learner: Learner, index: int) -> None:
    task = learner.stream[index]
    learner.predictor.prepare(task)
    learner.begin_task(task, is_new=True)


def train(learner: Learner, index: int, epochs: range | None = None) -> list[float]:
    """The losses of the epochs."""
    task = learner.stream[index]
    every = range(learner.config.learn.epochs) if epochs is None else epochs
    return [learner.train_epoch(task, epoch).loss for epoch in every]


def learn(learner: Learner, *indices: int) -> None:
    """Whole tasks."""
    for index in indices:
        task = learner.stream[index]
        learner.predictor.prepare(task)
        for _ in learn_task(learner, task):
            pass
        learner.remember(task)


def weights_of(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.weights.parameters()]


def fitted(tensors: Sequence[torch.Tensor], learner: Learner) -> list[torch.Tensor]:
    """Tensors of an earlier task, with zeros for outputs that are new since."""
    return [padded_like(old, now) for old, now in zip(tensors, learner.weights.parameters(), strict=True)]


def gradients_of(learner: Learner) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in learner.weights.parameters()]


def outputs_of(learner: Learner, segment: Any) -> torch.Tensor:
    """Of all classes, for the rows of a segment; with a graph if it is trained as one."""
    if learner.config.learn.train_as == "gcn":
        outputs: torch.Tensor = segment.outputs(learner.weights, slice(None))
        return outputs
    return learner.weights.mlp(torch.from_numpy(segment.rows.read(0, segment.num_rows)))


def row_losses(learner: Learner, segment: Any) -> torch.Tensor:
    """CE of each row among the segment's columns, by autograd."""
    columns = np.flatnonzero(segment.columns)
    labels = torch.from_numpy(np.searchsorted(columns, segment.labels))
    return torch.nn.functional.cross_entropy(outputs_of(learner, segment)[:, columns], labels, reduction="none")


def batch_loss(learner: Learner, segment: Any) -> torch.Tensor:
    """Their sum by the segment's coefficients."""
    return (row_losses(learner, segment) * torch.from_numpy(segment.coefficients)).sum()


def check_whole_run(config: RunConfig, path: Path) -> dict[str, Any]:
    """It ends, and everything it says is finite."""
    results = run(config, path)
    assert math.isfinite(results["aa"])
    assert math.isfinite(results["af"])
    assert len(results["matrix"]) == 3
    return results


def check_goes_on(config: RunConfig, directory: Path) -> None:
    """Stopped between tasks, and in the middle of one, it ends with the same bits."""
    whole = new_learner(config, directory / "whole")
    learn(whole, 0, 1, 2)
    first = new_learner(config, directory / "stopped")
    learn(first, 0)
    begin(first, 1)
    train(first, 1, range(2))
    second = new_learner(config, directory / "stopped")
    second.restore(first.tensors(), task_index=1, is_remembered=False)
    second.predictor.prepare(second.stream[1])
    for _ in learn_task(second, second.stream[1], from_epoch=2):
        pass
    second.remember(second.stream[1])
    third = new_learner(config, directory / "stopped")
    third.restore(second.tensors(), task_index=2, is_remembered=False)
    learn(third, 2)
    for name, tensor in whole.tensors().items():
        np.testing.assert_array_equal(third.tensors()[name], tensor, err_msg=name)
