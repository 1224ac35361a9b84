"""What methods that hold weights where old tasks left them have in common: ``Anchors`` as their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.learn.anchors import Anchors
from ecgl_scale.learn.method.base import Arrays, Context, Method, MethodPlan, TaskShape, TaskSizes, end_plan
from ecgl_scale.learn.method.kept import without_outputs
from ecgl_scale.learn.train import Penalty
from ecgl_scale.tasks.forgotten import Forgotten


class Anchored(Method):
    """Keeps anchors, which ``end_task`` adds to. They are two numbers a weight; so are those of the task that ends."""

    category: ClassVar[str] = "regularisation"
    stores: ClassVar[str] = "two numbers a weight"
    weight_copies: ClassVar[int] = 4
    measure_bytes: ClassVar[int] = 0
    """What it takes to measure importances, besides the task's rows, or its graph, and a gradient."""

    def __init__(self) -> None:
        self._anchors = Anchors()

    def held(self, context: Context, strength: float) -> Penalty | None:
        """How far the weights are from their anchors, ``strength`` times; None before there are any."""
        if not self._anchors:
            return None
        anchors = self._anchors.fit(context.trainer.weights)
        return lambda weights: strength * anchors.penalty(weights)

    def state(self) -> Arrays:
        """The anchors, as arrays by name."""
        return self._anchors.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._anchors = Anchors.of_state(state)

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """Hold no output of a forgotten class; nothing is kept of nodes."""
        names = ("anchor.strength", "anchor.place")
        self._anchors = Anchors.of_state(without_outputs(self._anchors.state(), gone, head, names))
        return 0

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """What measuring takes."""
        del config, shape
        return self.measure_bytes

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """The task's rows, or its graph, once more at its end, and a gradient."""
        needed = sizes.training_beside(self.measure_bytes)
        return replace(super().plan(config, sizes), end=end_plan(needed, "the task's rows, or graph, and a gradient"))
