"""Learning without forgetting: what the old model says of the new task's rows is kept while the new task is learned.

    L = CE + lambda * mean over the task's training rows of  sum_j H(softmax(z_old / T), softmax(z / T))

z_old are the outputs of the model as it was after the last task, frozen, on the same rows (and, trained as a graph, on
the same task graph); no old data is seen. task-IL: a term j for each old task, among its classes. class-IL: one term
among all classes seen before. No factor T^2, as in the paper. With ``learn.reduction: sum`` the CE is a sum, and so is
this. Li and Hoiem, eq. (1)-(3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.method.base import Context, Method, MethodPlan, TaskShape, TaskSizes
from ecgl_scale.learn.method.kept import weights_of_state, weights_state, without_outputs
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.soft import SoftTargets
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.units import MIB

HELD_BYTES = 64 * MIB
"""Old outputs that need more go to a file."""


class LwfConfig(Section):
    """Learning without forgetting."""

    lambda_: float = Field(default=1.0, ge=0, alias="lambda", description="Weight of the distillation.")
    temperature: float = Field(default=2.0, gt=0, description="Softens old and new outputs.")


class Lwf(Method):
    """Keeps the last weights."""

    name: ClassVar[str] = "lwf"
    choose_when: ClassVar[str] = "to compare: in class-IL no better than finetune"
    place: ClassVar[int] = 30
    category: ClassVar[str] = "regularisation"
    stores: ClassVar[str] = "the weights after the last task"
    cost: ClassVar[str] = "one pass over the task's rows"
    reference: ClassVar[str] = "Learning without Forgetting (Li and Hoiem, ECCV 2016)"
    settings: ClassVar[type[Section]] = LwfConfig
    weight_copies: ClassVar[int] = 2  # as arrays and, while old outputs are made, as tensors

    def segments(self, context: Context) -> list[AnySegment]:
        """The task's rows, compared with their labels and with the old model's outputs."""
        (segment,) = super().segments(context)
        if not self.kept or not context.config.section(LwfConfig).lambda_:
            return [segment]
        return [replace(segment, soft=self._soft_targets(context, segment))]

    def _soft_targets(self, context: Context, segment: AnySegment) -> SoftTargets:
        terms = self._terms(context)
        columns = np.flatnonzero(terms.any(axis=0))
        teacher = weights_of_state(self.kept, "teacher", context.trainer.weights)
        settings = context.config.section(LwfConfig)
        weight = settings.lambda_
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
            temperature=settings.temperature,
        )

    @staticmethod
    def _terms(context: Context) -> NDArray[np.bool_]:
        """The columns that are distilled: of each old task, or of all of them together."""
        old = [task for task in context.stream.seen(context.task)[:-1] if task.positions.size]
        terms = np.zeros((len(old), context.trainer.weights.num_classes), np.bool_)
        for term, task in zip(terms, old, strict=True):
            term[task.positions] = True
        return terms if context.config.setting == "task-il" else np.asarray(terms.any(axis=0))[None]

    def end_task(self, context: Context) -> None:
        """The model as it is now teaches the next task."""
        self.kept = weights_state(context.trainer.weights, "teacher")

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """The teacher says nothing of forgotten classes; nothing is kept of nodes."""
        self.kept = without_outputs(self.kept, gone, head, ["teacher"])
        return 0

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """Old outputs, unless they are in a file."""
        del config
        outputs = 4 * shape.num_rows * shape.num_classes
        return outputs if outputs <= HELD_BYTES else 0

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """Old outputs are held beside training where they are small."""
        needed = sizes.training_beside(self.beside_segments_bytes(config, sizes))
        return replace(super().plan(config, sizes), work_bytes=needed)


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
