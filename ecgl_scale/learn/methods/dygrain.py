"""DyGRAIN, a RECONSTRUCTION from its paper's description: there is no public code (Kim, Yun and Kang, IJCAI 2022).

    L = mean CE(training nodes, V_inf) + lambda mean over V_kd of (1 - eta) T^2 KL(teacher || model) [teacher right]
                                                                  + eta CE

V_inf, *influence propagation*: old training nodes whose receptive field the task changes most. 1 on every new node,
    s = sum over k = 0, 1, 2 of a (1 - a)^k M^k 1_new, M the mean over in-neighbours and the node, a = ``restart``; the
    ``nodes`` best old training nodes with s > 0. They are in the graph with ``tasks.inter_task_edges`` only, as in
    its paper, whose graph keeps its nodes; without such edges no old node is influenced, and V_inf is empty.
V_kd, *knowledge distillation with truth*: nodes of the bank that are being forgotten: the ``nodes`` with the largest
    rise d = CE(model) - CE(teacher) > 0, chosen anew in every step. The teacher is the model before the task;
    eta = ``truth``. The bank holds ``bank.budget`` random nodes a task, the same of each class, without edges.

    The rise is among all classes that may be given, KL among those that the teacher knows.

What is ours and not the paper's, as that does not say: the walk's length and start, the choice of the bank, the means.
Memory: 4 bytes a weight, and outputs of the bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.graph.propagate import StreamedPropagation
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.base import ROW_BYTES, Context, Method, MethodPlan, TaskShape, TaskSizes
from ecgl_scale.learn.method.kept import (
    old_train_ids,
    segments_with_old,
    weights_of_state,
    weights_state,
    without_outputs,
)
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import AnySegment, Penalty, Trainer
from ecgl_scale.rank.topk import top_nodes
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import positions_of

HOPS = 2
BARRED = -1e9
"""A logit that gets no share of a softmax, and takes part in products with 0 as infinity does not."""

Ids = NDArray[np.int64]


class DygrainConfig(Section):
    """A reconstruction of DyGRAIN from its paper's description; there is no public code."""

    nodes: int = Field(default=100, ge=1, description="Old nodes trained again: so many by influence, so many by loss.")
    lambda_: float = Field(default=1.0, ge=0, alias="lambda", description="Weight of the distillation.")
    temperature: float = Field(default=2.0, gt=0, description="Softens old and new outputs.")
    truth: float = Field(default=0.5, ge=0, le=1, description="Share of the true labels in the distillation.")
    restart: float = Field(default=0.15, gt=0, lt=1, description="Restart of the influence's walk.")


class Dygrain(Method):
    """A reconstruction: influenced old nodes are trained again, forgotten ones distilled."""

    name: ClassVar[str] = "dygrain"
    choose_when: ClassVar[str] = "to compare with its paper: as good as ecgl in task-IL"
    place: ClassVar[int] = 110
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "bank.budget nodes a task, features and label; last weights; uses old nodes of its graph"
    cost: ClassVar[str] = "one pass over the task's rows, two over the bank's"
    reference: ClassVar[str] = "a reconstruction of DyGRAIN (Kim, Yun and Kang) from its paper's description"
    settings: ClassVar[type[Section]] = DygrainConfig
    keeps_bank: ClassVar[bool] = True
    weight_copies: ClassVar[int] = 2  # the teacher, as arrays and as tensors
    is_reconstruction: ClassVar[bool] = True

    def segments(self, context: Context) -> list[AnySegment]:
        """New and influenced old nodes."""
        influenced = np.empty(0, np.int64)
        if context.config.tasks.inter_task_edges and context.task.index:
            influenced = influenced_nodes(context)
        return segments_with_old(context, influenced, None)

    def penalty(self, context: Context) -> Penalty | None:
        """The distillation of nodes that are being forgotten."""
        replay, settings = context.replay(), context.config.section(DygrainConfig)
        if replay is None or replay.rows is None or not self.kept or not settings.lambda_:
            return None
        (targets,) = context.targets([replay], None)
        columns = targets.columns if targets.groups is None else targets.columns[targets.groups]
        allowed = np.broadcast_to(columns, (targets.num_rows, columns.shape[-1]))
        earlier = context.stream.seen(context.task)[:-1]
        known = np.zeros(columns.shape[-1], np.bool_)
        known[np.concatenate([task.positions for task in earlier])] = True
        teacher = weights_of_state(self.kept, "teacher", context.trainer.weights)
        return Distillation(
            context.trainer,
            replay.rows,
            replay.labels,
            allowed=allowed,
            known=allowed & known,
            teacher=teacher,
            num_nodes=settings.nodes,
            weight=settings.lambda_,
            temperature=settings.temperature,
            truth=settings.truth,
        )

    def end_task(self, context: Context) -> None:
        """The model is the next task's teacher."""
        self.kept = weights_state(context.trainer.weights, "teacher")

    def remember(self, context: Context) -> MemoryBank:
        """Random training nodes, the same number of each class."""
        task = context.task
        labels = context.stream.labels_of(task.train_ids)
        draws = np.random.default_rng((context.config.seed, task.index)).random(labels.size)
        chosen = np.sort(top_nodes(draws, context.config.bank.budget, labels=labels, quota="class"))
        ids = task.train_ids[chosen]
        return context.bank.add(task.index, ids, labels[chosen], context.bank_rows(task, ids))

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """The teacher says nothing of forgotten classes; the nodes are in the bank."""
        self.kept = without_outputs(self.kept, gone, head, ["teacher"])
        return 0

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """The walk over a graph that keeps its nodes."""
        return ROW_BYTES * shape.num_nodes if config.tasks.inter_task_edges else 0

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """The walk over a graph that keeps its nodes; the rows it finds, and the bank's outputs, are few."""
        needed = sizes.training_beside(self.beside_segments_bytes(config, sizes))
        return replace(super().plan(config, sizes), work_bytes=needed)


class Distillation:
    """lambda times the mean over V_kd, as a term of the loss: it depends on the weights and on fixed rows."""

    def __init__(
        self,
        trainer: Trainer,
        rows: RowCache,
        labels: Ids,
        *,
        allowed: NDArray[np.bool_],
        known: NDArray[np.bool_],
        teacher: SharedWeights,
        num_nodes: int,
        weight: float,
        temperature: float,
        truth: float,
    ) -> None:
        self._trainer, self._rows, self._num_nodes, self._weight = trainer, rows, num_nodes, weight
        self._temperature, self._truth = temperature, truth
        self._labels = torch.from_numpy(np.array(labels))
        self._barred, self._unknown = torch.from_numpy(~allowed), torch.from_numpy(~known)
        outputs = self._outputs(teacher)
        self._teacher_losses = self._losses(outputs)
        self._teacher = outputs.masked_fill(self._unknown, BARRED)
        self._is_right = self._teacher.argmax(1) == self._labels

    def forgotten(self, weights: SharedWeights) -> Ids:
        """V_kd: rows whose loss has risen most."""
        rise = (self._losses(self._outputs(weights)) - self._teacher_losses).double().numpy()
        return np.sort(top_nodes(rise, self._num_nodes, candidates=np.flatnonzero(rise > 0)))

    def __call__(self, weights: SharedWeights) -> torch.Tensor:
        """The term, for autograd."""
        chosen = self.forgotten(weights)
        if not chosen.size:
            return torch.zeros((), device=weights.device)
        rows = self._rows
        x = rows.take_sparse(chosen) if rows.is_sparse else torch.from_numpy(rows.take(chosen)).to(weights.device)
        logits = weights.mlp(x).cpu()
        softened = logits.masked_fill(self._unknown[chosen], BARRED) / self._temperature
        old = torch.log_softmax(self._teacher[chosen] / self._temperature, 1)
        distances = (old.exp() * (old - torch.log_softmax(softened, 1))).sum(1) * self._temperature**2
        truth = torch.nn.functional.cross_entropy(
            logits.masked_fill(self._barred[chosen], BARRED), self._labels[chosen], reduction="none"
        )
        return self._weight * ((1 - self._truth) * distances * self._is_right[chosen] + self._truth * truth).mean()

    def _losses(self, outputs: torch.Tensor) -> torch.Tensor:
        barred = outputs.masked_fill(self._barred, BARRED)
        return torch.nn.functional.cross_entropy(barred, self._labels, reduction="none")

    def _outputs(self, weights: SharedWeights) -> torch.Tensor:
        blocks = [np.array(block) for block in self._trainer.stream_logits(self._rows, weights=weights)]
        return torch.from_numpy(np.concatenate(blocks))


def influenced_nodes(context: Context) -> Ids:
    """V_inf: ids, ascending."""
    task, settings = context.task, context.config.section(DygrainConfig)
    graph, nodes = context.graph(task)
    propagation = StreamedPropagation(graph, context.resources, "mean")
    values = np.isin(nodes, task.node_ids, assume_unique=True).astype(np.float32)
    total = np.zeros(nodes.size)
    for hop in range(HOPS + 1):
        values = values if hop == 0 else propagation.spread(values, 1)
        total += settings.restart * (1 - settings.restart) ** hop * values
    old = positions_of(nodes, old_train_ids(context))
    return np.sort(nodes[top_nodes(total, settings.nodes, candidates=old[total[old] > 0])])
