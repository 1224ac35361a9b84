"""Learning without forgetting: what the old model says of the new task's rows is kept while the new task is learned.

    L = CE + lambda * mean over the task's training rows of  sum_j H(softmax(z_old / T), softmax(z / T))

z_old are the outputs of the model as it was after the last task, frozen, on the same rows (and, trained as a graph, on
the same task graph); no old data is seen. task-IL: a term j for each old task, among its classes. class-IL: one term
among all classes seen before. No factor T^2, as in the paper. With ``learn.reduction: sum`` the CE is a sum, and so is
this. Li and Hoiem, eq. (1)-(3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.methods.base import Arrays, Context, Method, TaskSizes
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.soft import SoftTargets
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.units import MIB

HELD_BYTES = 64 * MIB
"""Old outputs that need more go to a file."""


class Lwf(Method):
    """Keeps the last weights."""

    name: ClassVar[str] = "lwf"
    category: ClassVar[str] = "regularisation"
    stores: ClassVar[str] = "the weights after the last task"
    cost: ClassVar[str] = "one pass over the task's rows"
    reference: ClassVar[str] = "Learning without Forgetting (Li and Hoiem, ECCV 2016)"

    def __init__(self) -> None:
        self._teacher: list[torch.Tensor] = []

    def segments(self, context: Context) -> list[AnySegment]:
        """The task's rows, compared with their labels and with the old model's outputs."""
        (segment,) = super().segments(context)
        if not self._teacher or not context.config.lwf.lambda_:
            return [segment]
        return [replace(segment, soft=self._soft_targets(context, segment))]

    def _soft_targets(self, context: Context, segment: AnySegment) -> SoftTargets:
        terms = self._terms(context)
        columns = np.flatnonzero(terms.any(axis=0))
        teacher = self._teacher_weights(context.trainer.weights)
        weight = context.config.lwf.lambda_
        if context.config.learn.reduction == "mean":
            weight /= segment.num_rows
        return SoftTargets(
            logits=RowCache.collect(
                _outputs(context, segment, teacher, columns),
                (segment.num_rows, columns.size),
                memory_bytes=HELD_BYTES,
                directory=context.work / "rows",
                name=f"old-outputs-{context.task.index}",
            ),
            terms=terms,
            coefficients=np.full(segment.num_rows, weight, np.float32),
            temperature=context.config.lwf.temperature,
        )

    @staticmethod
    def _terms(context: Context) -> NDArray[np.bool_]:
        """The columns that are distilled: of each old task, or of all of them together."""
        *old, _ = context.stream.seen(context.task)
        terms = np.zeros((len(old), context.stream.num_classes), np.bool_)
        for term, task in zip(terms, old, strict=True):
            term[task.positions] = True
        return terms if context.config.setting == "task-il" else np.asarray(terms.any(axis=0))[None]

    def _teacher_weights(self, like: SharedWeights) -> SharedWeights:
        teacher = like.copy()
        with torch.no_grad():
            for parameter, value in zip(teacher.parameters(), self._teacher, strict=True):
                parameter.copy_(value)
        return teacher

    def end_task(self, context: Context) -> None:
        """The model as it is now teaches the next task."""
        self._teacher = [parameter.detach().clone() for parameter in context.trainer.weights.parameters()]

    def state(self) -> Arrays:
        """The last weights."""
        return {f"teacher.{index}": tensor.cpu().numpy() for index, tensor in enumerate(self._teacher)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._teacher = [torch.from_numpy(np.array(state[f"teacher.{index}"])) for index in range(len(state))]

    def planned_bytes(self, num_weights: int, num_classes: int, num_tasks: int) -> int:
        """Two copies of the weights while old outputs are made."""
        del num_classes, num_tasks
        return 8 * num_weights

    def planned_work_bytes(self, config: RunConfig, sizes: TaskSizes) -> int:
        """Training, and the old outputs beside it."""
        del config
        outputs = 4 * sizes.num_rows * sizes.widths[-1]
        return sizes.training_bytes + (outputs if outputs <= HELD_BYTES else 0)


def _outputs(
    context: Context, segment: AnySegment, teacher: SharedWeights, columns: NDArray[np.int64]
) -> Iterator[NDArray[np.float32]]:
    """What ``teacher`` says of the segment's rows, block by block."""
    wanted = torch.from_numpy(columns)
    if isinstance(segment, GraphSegment):
        with torch.no_grad():
            yield segment.outputs(teacher, wanted).cpu().numpy()
    else:
        yield from context.trainer.stream_logits(segment.rows, weights=teacher, columns=wanted)
