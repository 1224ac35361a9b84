"""Memory-aware synapses: weights that the outputs depend on are held, whatever the labels say.

    L = CE + lambda * sum_k O_k (w_k - w*_k)^2

    O_new = (d/dw mean(z^2))^2    over the task's training rows and the logits of its columns
    O     = (n_old O + n_new O_new) / (n_old + n_new)          n: training rows;  w*: the weights after the last task

As the papers on graphs run it: the square of the batch's gradient. Aljundi et al. take the mean over rows of each row's
absolute gradient, which lambda = 10000 is not made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.sections import Section
from ecgl_scale.learn.anchors import Anchors
from ecgl_scale.learn.fisher import batch_squares
from ecgl_scale.learn.method.anchored import Anchored
from ecgl_scale.learn.method.base import Arrays, Context
from ecgl_scale.learn.train import Penalty


class MasConfig(Section):
    """Memory-aware synapses: weights that outputs depend on are held."""

    lambda_: float = Field(default=10000.0, ge=0, alias="lambda", description="Weight of the penalty.")


class Mas(Anchored):
    """Keeps importances and the last weights."""

    name: ClassVar[str] = "mas"
    choose_when: ClassVar[str] = "where no old data may be kept and a node's task is known (task-IL)"
    place: ClassVar[int] = 50
    cost: ClassVar[str] = "one pass over the task's rows"
    reference: ClassVar[str] = "Memory Aware Synapses (Aljundi et al., ECCV 2018)"
    settings: ClassVar[type[Section]] = MasConfig
    shares_end: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._num_rows = 0

    def penalty(self, context: Context) -> Penalty | None:
        """How far the weights are from where the last task left them."""
        return self.held(context, context.config.section(MasConfig).lambda_)

    def end_task(self, context: Context) -> None:
        """Take the task's importances into the mean, and anchor the weights where they are."""
        (segment,) = self.segments(context)
        share = 1.0 / (segment.num_rows * int(segment.columns.sum()))
        even = np.full(segment.num_rows, share, np.float32)
        importances = batch_squares(context.trainer, replace(segment, measure="squares", coefficients=even))
        total = self._num_rows + segment.num_rows
        if self._anchors:
            old = self._anchors.fit(context.trainer.weights).strengths
            new_share = segment.num_rows / total
            importances = [before.lerp(now, new_share) for before, now in zip(old, importances, strict=True)]
        self._anchors = Anchors()
        self._anchors.add(context.trainer.weights, importances)
        self._num_rows = total

    def state(self) -> Arrays:
        """Anchors, and the number of rows that their strengths are the mean of."""
        return {**super().state(), "num_rows": np.array([self._num_rows])}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        super().load_state(state)
        self._num_rows = int(state["num_rows"][0])
