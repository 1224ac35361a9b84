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

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.learn.anchors import BYTES_PER_WEIGHT, Anchors
from ecgl_scale.learn.fisher import batch_squares
from ecgl_scale.learn.methods.base import Arrays, Context, Method, TaskSizes, end_plan
from ecgl_scale.learn.train import Penalty


class Mas(Method):
    """Keeps importances and the last weights."""

    name: ClassVar[str] = "mas"
    category: ClassVar[str] = "regularisation"
    stores: ClassVar[str] = "two numbers a weight"
    cost: ClassVar[str] = "one pass over the task's rows"
    reference: ClassVar[str] = "Memory Aware Synapses (Aljundi et al., ECCV 2018)"

    def __init__(self) -> None:
        self._anchors = Anchors()
        self._num_rows = 0

    def penalty(self, context: Context) -> Penalty | None:
        """How far the weights are from where the last task left them."""
        if not self._anchors:
            return None
        anchors, strength = self._anchors.to(context.trainer.weights.device), context.config.mas.lambda_
        return lambda weights: strength * anchors.penalty(weights)

    def end_task(self, context: Context) -> None:
        """Take the task's importances into the mean, and anchor the weights where they are."""
        (segment,) = self.segments(context)
        share = 1.0 / (segment.num_rows * int(segment.columns.sum()))
        even = np.full(segment.num_rows, share, np.float32)
        importances = batch_squares(context.trainer, replace(segment, measure="squares", coefficients=even))
        total = self._num_rows + segment.num_rows
        if self._anchors:
            old = self._anchors.to(context.trainer.weights.device).strengths
            new_share = segment.num_rows / total
            importances = [before.lerp(now, new_share) for before, now in zip(old, importances, strict=True)]
        self._anchors = Anchors()
        self._anchors.add(context.trainer.weights, importances)
        self._num_rows = total

    def state(self) -> Arrays:
        """Anchors, and the number of rows that their strengths are the mean of."""
        return {**self._anchors.state(), "num_rows": np.array([self._num_rows])}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._anchors = Anchors.of_state(state)
        self._num_rows = int(state["num_rows"][0])

    def planned_bytes(self, num_weights: int, num_classes: int, num_tasks: int) -> int:
        """The anchors, and the importances of the task that ends."""
        del num_classes, num_tasks
        return 2 * BYTES_PER_WEIGHT * num_weights

    def planned_end(self, config: RunConfig, sizes: TaskSizes) -> StagePlan:
        """The task's rows, or its graph, once more, and a gradient."""
        del config
        return end_plan(sizes.training_bytes, "the task's rows, or graph, and a gradient")
