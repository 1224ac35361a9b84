"""Elastic weight consolidation: weights that old tasks need are held where those tasks left them.

    L = CE + lambda * sum_j sum_k F_jk (w_k - w*_jk)^2        (no 1/2, as lambda is the paper's table's)

w*_j are the weights after task j, F_j the diagonal of its empirical Fisher there: for a loss sum_i c_i l_i it is
sum_i c_i (dl_i / dw)^2, each row's own gradient squared (Kirkpatrick et al., eq. 3). Exact on rows by themselves;
trained as a graph it is estimated by ``ewc.draws`` random signs, see ``learn.fisher``.

``reference: true``: F_j is the square of the full-batch mean gradient instead, as the public code has it: rows
cancel each other, so it is far smaller, and lambda = 10000 was chosen with it. The default, the Fisher of EWC's own
paper, holds weights harder with the same lambda. And in task-IL no class is balanced from the second task on, as the
public code shifts labels before it counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.learn.anchors import BYTES_PER_WEIGHT, Anchors
from ecgl_scale.learn.feed import BLOCK_BYTES
from ecgl_scale.learn.fisher import batch_squares, row_squares
from ecgl_scale.learn.methods.base import Arrays, Context, Method, TaskSizes, end_plan
from ecgl_scale.learn.train import AnySegment, Penalty


class Ewc(Method):
    """Keeps anchors: the old tasks' weights and Fishers, summed up."""

    name: ClassVar[str] = "ewc"
    category: ClassVar[str] = "regularisation"
    stores: ClassVar[str] = "two numbers a weight"
    cost: ClassVar[str] = "one pass over the task's rows"
    reference: ClassVar[str] = "Overcoming catastrophic forgetting in neural networks (Kirkpatrick et al., PNAS 2017)"

    def __init__(self) -> None:
        self._anchors = Anchors()

    def segments(self, context: Context) -> list[AnySegment]:
        """The task's rows."""
        (segment,) = super().segments(context)
        config = context.config
        if config.ewc.reference and config.setting == "task-il" and context.task.index:
            even = 1.0 if config.learn.reduction == "sum" else 1.0 / segment.num_rows
            return [replace(segment, coefficients=np.full(segment.num_rows, even, np.float32))]
        return [segment]

    def penalty(self, context: Context) -> Penalty | None:
        """How far the weights are from their anchors."""
        if not self._anchors:
            return None
        anchors, strength = self._anchors.to(context.trainer.weights.device), context.config.ewc.lambda_
        return lambda weights: strength * anchors.penalty(weights)

    def end_task(self, context: Context) -> None:
        """Anchor the weights where they are."""
        (segment,) = self.segments(context)
        self._anchors.to(context.trainer.weights.device).add(context.trainer.weights, _fisher(context, segment))

    def state(self) -> Arrays:
        """The anchors."""
        return self._anchors.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._anchors = Anchors.of_state(state)

    def planned_bytes(self, num_weights: int, num_classes: int, num_tasks: int) -> int:
        """The anchors, and the Fisher of the task that ends."""
        del num_classes, num_tasks
        return 2 * BYTES_PER_WEIGHT * num_weights

    def planned_end(self, config: RunConfig, sizes: TaskSizes) -> StagePlan:
        """The task's rows, or its graph, once more, and a gradient, with squares of a block."""
        del config
        return end_plan(sizes.training_bytes + 2 * BLOCK_BYTES, "the task's rows, or graph, and a gradient")


def _fisher(context: Context, segment: AnySegment) -> list[torch.Tensor]:
    config = context.config
    if config.ewc.reference:
        return batch_squares(context.trainer, segment)
    return row_squares(context.trainer, segment, draws=config.ewc.draws, seed=(config.seed, context.task.index))
