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

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from ecgl_scale.config.sections import Section
from ecgl_scale.learn.feed import BLOCK_BYTES
from ecgl_scale.learn.fisher import batch_squares, row_squares
from ecgl_scale.learn.method.anchored import Anchored
from ecgl_scale.learn.method.base import QUIRKS, Context
from ecgl_scale.learn.train import AnySegment, Penalty


class EwcConfig(Section):
    """Elastic weight consolidation."""

    lambda_: float = Field(default=10000.0, ge=0, alias="lambda", description="Weight of the penalty.")
    draws: int = Field(
        default=32, ge=1, description="Random signs that estimate each node's squares with `learn.train_as: gcn`."
    )
    reference: bool = Field(
        default=False,
        description=QUIRKS
        + " EWC: squares of the full-batch mean gradient, with which 10000 was chosen, and no balance from the second "
        "task on (task-il).",
    )


class Ewc(Anchored):
    """Keeps anchors: the old tasks' weights and Fishers, summed up."""

    name: ClassVar[str] = "ewc"
    choose_when: ClassVar[str] = "where no old data may be kept and a node's task is known (task-IL)"
    place: ClassVar[int] = 40
    cost: ClassVar[str] = "one pass over the task's rows"
    reference: ClassVar[str] = "Overcoming catastrophic forgetting in neural networks (Kirkpatrick et al., PNAS 2017)"
    settings: ClassVar[type[Section]] = EwcConfig
    shares_end: ClassVar[bool] = True
    measure_bytes: ClassVar[int] = 2 * BLOCK_BYTES

    def segments(self, context: Context) -> list[AnySegment]:
        """The task's rows."""
        (segment,) = super().segments(context)
        config = context.config
        if config.section(EwcConfig).reference and config.setting == "task-il" and context.task.index:
            even = 1.0 if config.learn.reduction == "sum" else 1.0 / segment.num_rows
            return [replace(segment, coefficients=np.full(segment.num_rows, even, np.float32))]
        return [segment]

    def penalty(self, context: Context) -> Penalty | None:
        """How far the weights are from their anchors."""
        return self.held(context, context.config.section(EwcConfig).lambda_)

    def end_task(self, context: Context) -> None:
        """Anchor the weights where they are."""
        (segment,) = self.segments(context)
        self._anchors.add(context.trainer.weights, _fisher(context, segment))


def _fisher(context: Context, segment: AnySegment) -> list[torch.Tensor]:
    settings = context.config.section(EwcConfig)
    if settings.reference:
        return batch_squares(context.trainer, segment)
    seed = (context.config.seed, context.task.index)
    return row_squares(context.trainer, segment, draws=settings.draws, seed=seed)
