"""Gradient episodic memory: a step may not raise the loss of any old task's memory.

    g: the task's gradient;   G: a row for each old task, the gradient of the CE on its memory nodes, here and now
    if any G g < 0:   g <- g + G^T v,    v = argmin 1/2 v^T G G^T v + (G g)^T v,   v >= margin

At the minimum G (g + G^T v) >= 0 whatever the margin is: no negative dot product is left (Lopez-Paz and Ranzato, eq.
11; they keep a task's last nodes, here they are drawn). In the eigenbasis of G G^T it is a least-squares problem in
u = v - margin >= 0, as large as there are old tasks: scipy's NNLS. Trained as a graph, messages go over the whole old
task graph, as in the papers on graphs: that is kept too.

``reference: true``: G G^T + 0.001 I, which outweighs small gradients and then leaves negative products; task-IL draws
with replacement, class-IL keeps the first nodes by class, so mostly one class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.loss import Labelled, Segment, target_fields
from ecgl_scale.learn.method.base import QUIRKS, Arrays, Context, Ids, Method, MethodPlan, TaskSizes
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import positions_of
from ecgl_scale.tasks.stream import Task

REFERENCE_RIDGE = 1e-3
RANK_TOLERANCE = 1e-13
"""Smaller eigenvalues, compared with the largest, are rounding."""
PRODUCT_COLUMNS = 1 << 20
"""Weights that are in float64 at once."""


class GemConfig(Section):
    """Gradient episodic memory."""

    memory_nodes: int = Field(default=100, ge=1, description="Nodes kept of each task.")
    margin: float = Field(default=0.5, ge=0, description="Least strength with which old gradients count.")
    reference: bool = Field(
        default=False,
        description=QUIRKS + " GEM: 0.001 is added to the quadratic term; nodes are drawn with replacement (task-il), "
        "or the first by class (class-il).",
    )


class Gem(Method):
    """Keeps nodes of every task."""

    name: ClassVar[str] = "gem"
    choose_when: ClassVar[str] = "to compare: at or below ecgl, several times its time"
    place: ClassVar[int] = 60
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "gem.memory_nodes nodes a task, features and label; as gcn the old task graphs"
    cost: ClassVar[str] = "one pass over the task's rows, and one over each old task's nodes; as gcn over its graph"
    reference: ClassVar[str] = "Gradient Episodic Memory for Continual Learning (Lopez-Paz and Ranzato, NeurIPS 2017)"
    settings: ClassVar[type[Section]] = GemConfig
    keeps_graphs: ClassVar[bool] = True

    def __init__(self) -> None:
        self._nodes: dict[int, Ids] = {}
        self._memories: list[AnySegment] = []

    def begin_task(self, context: Context) -> None:
        """Make the old tasks' memories ready."""
        old = [task for task in context.stream.seen(context.task)[:-1] if self._nodes[task.index].size]
        self._memories = [_memory(context, task, self._nodes[task.index]) for task in old]

    def adjust(self, context: Context) -> None:
        """Project the gradient."""
        if not self._memories:
            return
        trainer = context.trainer
        gradient = _flat_gradient(context)
        old = torch.empty(len(self._memories), gradient.numel(), device=gradient.device)
        for row, memory in zip(old, self._memories, strict=True):
            trainer.gradient([memory], with_dropout=False)
            row.copy_(_flat_gradient(context))
        config = context.config.section(GemConfig)
        ridge = REFERENCE_RIDGE if config.reference else 0.0
        projected = project(gradient, old, margin=config.margin, ridge=ridge)
        start = 0
        for parameter in trainer.weights.parameters():
            parameter.grad.copy_(projected[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()

    def end_epochs(self) -> None:
        """Let go of the old tasks' memories, which as gcn are whole graphs."""
        self._memories = []

    def end_task(self, context: Context) -> None:
        """Choose the task's memory."""
        self._nodes[context.task.index] = _choose(context)

    def state(self) -> Arrays:
        """The ids of the nodes; their rows are in the task graphs."""
        return {f"nodes.{index}": ids for index, ids in self._nodes.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._nodes = {int(name.rpartition(".")[2]): np.array(ids) for name, ids in state.items()}

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """Forgotten nodes are memory nodes no more."""
        del head
        before = sum(ids.size for ids in self._nodes.values())
        self._nodes = {index: ids[~np.isin(ids, gone.node_ids)] for index, ids in self._nodes.items()}
        return before - sum(ids.size for ids in self._nodes.values())

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """A gradient for each task, and the projected one; ids, and while a task is trained rows and targets."""
        gradients = 4 * sizes.num_weights * (sizes.num_tasks + 2)
        nodes = sizes.num_tasks * config.section(GemConfig).memory_nodes * (sizes.row_bytes + 40)
        return replace(super().plan(config, sizes), state_bytes=gradients + nodes)


def project(gradient: torch.Tensor, old: torch.Tensor, *, margin: float, ridge: float = 0.0) -> torch.Tensor:
    """The gradient that raises no old loss, nearest to ``gradient`` but for the margin; ``old`` is [tasks, weights].

    Memory: the result, and 8 bytes for 2^20 weights a task.
    """
    products = np.zeros((len(old), len(old) + 1))
    for start in range(0, gradient.numel(), PRODUCT_COLUMNS):
        part = slice(start, start + PRODUCT_COLUMNS)
        rows = old[:, part].double()
        products += (rows @ torch.cat([rows, gradient[None, part].double()]).t()).cpu().numpy()
    gram, dots = products[:, :-1], products[:, -1]
    # The trainer says so itself where numbers are not finite any more.
    if not np.isfinite(products).all() or (dots >= 0).all():
        return gradient
    v = torch.from_numpy(_solve(gram + ridge * np.eye(len(old)), dots, margin)).to(gradient.device)
    projected = gradient.clone()
    for start in range(0, gradient.numel(), PRODUCT_COLUMNS):
        part = slice(start, start + PRODUCT_COLUMNS)
        projected[part] = (gradient[part].double() + v @ old[:, part].double()).float()
    return projected


def _solve(matrix: NDArray[np.float64], linear: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """argmin 1/2 v^T M v + p^T v, v >= margin: with M = R^T R and u = v - margin, min |R u - b|, u >= 0."""
    from scipy.optimize import nnls

    scale = np.diag(matrix).max()
    matrix, linear = matrix / scale, linear / scale
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    is_kept = values > RANK_TOLERANCE * values[-1]
    values, vectors = values[is_kept], vectors[:, is_kept]
    rooted = np.sqrt(values)[:, None] * vectors.T
    wanted = -(vectors.T @ (linear + matrix.sum(axis=1) * margin)) / np.sqrt(values)
    return np.asarray(nnls(rooted, wanted, maxiter=1000 + 30 * len(linear))[0] + margin)


def _flat_gradient(context: Context) -> torch.Tensor:
    return torch.cat([parameter.grad.reshape(-1) for parameter in context.trainer.weights.parameters()])


def _choose(context: Context) -> Ids:
    """Memory nodes of the task."""
    ids, config = context.task.train_ids, context.config
    settings = config.section(GemConfig)
    count = settings.memory_nodes
    rng = np.random.default_rng((config.seed, context.task.index))
    if not settings.reference:
        return np.sort(rng.choice(ids, min(count, ids.size), replace=False))
    if config.setting == "task-il":
        return np.sort(rng.choice(ids, count))
    return np.sort(ids[np.argsort(context.stream.labels_of(ids), kind="stable")[:count]])


def _memory(context: Context, task: Task, ids: Ids) -> AnySegment:
    """The CE on an old task's memory nodes, weighed and sliced as a task's own."""
    labelled = Labelled.of_task(task.index, context.stream.labels_of(ids))
    (targets,) = context.targets([labelled], None)
    if context.config.learn.train_as == "mlp":
        return Segment(rows=context.rows(task, ids, f"gem-{task.index}"), **target_fields(targets))
    (segment,) = context.segments([task], None)
    return replace(
        cast(GraphSegment, segment), local=positions_of(context.graph(task)[1], ids), **target_fields(targets)
    )
