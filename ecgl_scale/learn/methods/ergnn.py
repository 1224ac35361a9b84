"""ER-GNN: experience replay of single nodes, without their edges (Zhou and Cao, AAAI 2021).

    L = beta L_new + (1 - beta) L_kept        beta = |M| / (|M| + n), M all kept nodes, n training nodes of the task

    MF   of each class the nodes nearest to the mean of its features
    CM   of each class the nodes with the fewest nodes of other classes within ``distance``

Each loss is a mean of its own (a sum with ``learn.reduction: sum``), weighed as the config says; ``bank.budget`` nodes
a task, shared equally by its classes.
Both choices look at the features alone, so it does not matter whether they are made at the first epoch or the last.
CM compares with at most 1,000 nodes of each other class, drawn at random, as the authors do (but in full precision).

``reference: true``, as the public code: MF keeps the nodes with the *smallest* product with the mean; CM has at most
1,000 candidates of a class; task-IL nests the losses of the old tasks, L <- beta L + (1 - beta) L_j from the oldest on,
so the current task weighs beta^t and an old one k tasks before the last (1 - beta) beta^k.
Memory: features of a block, and 1,000 rows of every class for CM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.base import QUIRKS, ROW_BYTES, Context, Method, MethodPlan, TaskShape, TaskSizes, end_plan
from ecgl_scale.learn.method.kept import draw_per_class, scaled
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.rank.topk import top_nodes
from ecgl_scale.units import MIB

MAX_COMPARED = 1000
"""Nodes of a class that CM compares with."""
BLOCK_BYTES = 16 * MIB

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]


class ErgnnConfig(Section):
    """Experience replay of chosen nodes."""

    select: Literal["mf", "cm"] = Field(default="mf", description="By the mean of features, or by coverage.")
    distance: float = Field(default=0.5, gt=0, description="Radius of the coverage, for `select: cm`.")
    reference: bool = Field(
        default=False,
        description=QUIRKS
        + " ER-GNN: nodes least like the mean are kept (mf), 1,000 candidates of a class at most (cm); "
        "losses of old tasks are nested (task-il).",
    )


class Ergnn(Method):
    """Keeps the most typical (MF) or the best separated (CM) nodes of each class."""

    name: ClassVar[str] = "ergnn"
    choose_when: ClassVar[str] = "to compare: far below ecgl in class-IL"
    place: ClassVar[int] = 80
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "bank.budget nodes a task, features and label"
    cost: ClassVar[str] = "one pass over the task's rows and the bank"
    reference: ClassVar[str] = "Overcoming Catastrophic Forgetting in GNNs with Experience Replay (Zhou and Cao)"
    settings: ClassVar[type[Section]] = ErgnnConfig
    keeps_bank: ClassVar[bool] = True

    def segments(self, context: Context) -> list[AnySegment]:
        """New rows by beta, kept ones by the rest."""
        replay = context.replay()
        if replay is None:
            return context.segments([context.task], None)
        parts = context.parts([context.task])
        (new,), (kept,) = context.targets(parts, None), context.targets([replay], None)
        beta = len(replay.labels) / (len(replay.labels) + len(parts[0].labels))
        weights = (beta, 1 - beta)
        if context.config.section(ErgnnConfig).reference and context.config.setting == "task-il":
            tasks = np.unique(replay.tasks)
            weights = (beta**tasks.size, 1.0)
            coefficients = np.empty(len(replay.labels), np.float32)
            for age, task in enumerate(reversed(tasks.tolist())):
                rows = replay.tasks == task
                share = kept.coefficients[rows]
                if context.config.learn.reduction == "mean":  # of the task's own rows, which have a loss of their own
                    share = share / share.sum()
                coefficients[rows] = share * (1 - beta) * beta**age
            kept = replace(kept, coefficients=coefficients)
        return context.attach([context.task], parts, replay, [scaled(new, weights[0]), scaled(kept, weights[1])])

    def remember(self, context: Context) -> MemoryBank:
        """Choose by the task's training nodes alone."""
        task, settings = context.task, context.config.section(ErgnnConfig)
        if not context.config.bank.budget:
            return context.bank
        shape = TaskShape(task.num_nodes, task.num_train, 0, context.trainer.weights.widths)
        beside = _choosing_bytes(context.config, shape)
        rows = context.rows(task, task.train_ids, f"choose-{task.index}", beside_bytes=beside)
        labels = context.stream.labels_of(task.train_ids)
        rng = np.random.default_rng((context.config.seed, task.index))
        if settings.select == "mf":
            scores = mean_scores(rows, labels, least_alike=settings.reference)
            candidates: Ids | None = None
        else:
            scores = coverage_scores(rows, labels, settings.distance, rng)
            candidates = draw_per_class(labels, MAX_COMPARED, rng) if settings.reference else None
        chosen = np.sort(
            top_nodes(scores, context.config.bank.budget, candidates=candidates, labels=labels, quota="class")
        )
        ids = task.train_ids[chosen]
        return context.bank.add(task.index, ids, labels[chosen], context.bank_rows(task, ids))

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """The task's rows, blocks of them in float64, and with CM the rows they are compared with."""
        beside = _choosing_bytes(config, sizes)
        needed = beside + sizes.rows_bytes(sizes.num_rows, beside_bytes=beside)
        formula = "the task's rows and blocks of them in float64"
        return replace(super().plan(config, sizes), end=end_plan(needed, formula))


def _choosing_bytes(config: RunConfig, shape: TaskShape) -> int:
    """What choosing takes besides the rows."""
    needed = ROW_BYTES * shape.num_rows + 3 * BLOCK_BYTES
    if config.section(ErgnnConfig).select == "cm":
        needed += 12 * shape.num_features * min(MAX_COMPARED * shape.num_classes, shape.num_rows)
    return needed


def mean_scores(rows: RowCache, labels: Ids, *, least_alike: bool = False) -> Scores:
    """Minus the squared distance to the mean of the row's class; ``least_alike``: minus the product with it."""
    classes, places = np.unique(labels, return_inverse=True)
    means = np.zeros((classes.size, rows.num_features))
    for start, block in _blocks(rows):
        np.add.at(means, places[start : start + len(block)], block)
    means /= np.bincount(places)[:, None]
    scores = np.empty(labels.size)
    for start, block in _blocks(rows):
        own = means[places[start : start + len(block)]]
        values = np.einsum("ij,ij->i", block, own) if least_alike else np.square(block - own).sum(axis=1)
        scores[start : start + len(block)] = -values
    return scores


def coverage_scores(rows: RowCache, labels: Ids, distance: float, rng: np.random.Generator) -> Scores:
    """Minus the number of rows of other classes that are nearer than ``distance``."""
    compared = draw_per_class(labels, MAX_COMPARED, rng)
    others, other_labels = rows.take(compared).astype(np.float64), labels[compared]
    squares = np.square(others).sum(axis=1)
    scores = np.empty(labels.size)
    for start, block in _blocks(rows, others.shape[0]):
        exact = block.astype(np.float64)
        apart = np.square(exact).sum(axis=1)[:, None] - 2 * exact @ others.T + squares
        is_other = labels[start : start + len(block), None] != other_labels
        scores[start : start + len(block)] = -np.count_nonzero((apart < distance**2) & is_other, axis=1)
    return scores


def _blocks(rows: RowCache, extra_columns: int = 0) -> Iterator[tuple[int, NDArray[np.float32]]]:
    size = max(BLOCK_BYTES // (8 * (rows.num_features + 3 * extra_columns)), 1)
    return ((block.start, x) for block, x in rows.stream(size))
