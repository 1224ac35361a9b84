"""ContinualGNN: new patterns are detected, old ones replayed and held fast (Wang et al., CIKM 2020).

    L = mean CE(training nodes, detected old nodes, memory) + lambda/2 sum F (theta - theta*)^2

Detection (``tasks.inter_task_edges`` only: without edges to old nodes nothing old can change):
    delta_u = |f*(G_t, u) - f*(G_t-1, u)|_1 for new nodes, alone in G_t-1, and for old ones with new in-neighbours
    score = M^2 delta,  M f(v) = (f(v) + sum of in-neighbours' f) / (deg + 1)
    Trained again are old training nodes with new in-neighbours, and those among the best ``detect_ratio`` of all nodes
    with a score. f* is the graph network before the task.
Memory: B_c = floor(B n_c / n) nodes of class c, n_c training nodes seen of it. Classes over their quota lose nodes at
    random. A new node is added while there is room, then takes a random place with chance B_c / n_c (1 + alpha s);
    s = sigmoid(10 share - 5), share of its neighbours with a known label that have another one. Known are training
    labels. n_c is that after the task, for all of its nodes. Memory nodes are replayed without edges.
theta* and F = (gradient of the mean CE on the memory)^2 are those after the last task.

Memory of the run: 16 bytes a weight, the memory nodes; detection holds the task graph as GCN training does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.graph.propagate import StreamedPropagation
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.base import ROW_BYTES, Arrays, Context, Method, MethodPlan, TaskShape, TaskSizes, end_plan
from ecgl_scale.learn.method.kept import (
    bank_of_state,
    bank_state,
    labelled,
    old_train_ids,
    segments_with_old,
    training_norm,
    weights_of_state,
    weights_state,
    without_nodes,
    without_outputs,
)
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import gathering_bytes
from ecgl_scale.learn.train import AnySegment, Penalty
from ecgl_scale.rank.topk import top_nodes
from ecgl_scale.store.edges.plan import MAX_BLOCK_EDGES
from ecgl_scale.store.features.dense import GATHER_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import positions_of
from ecgl_scale.tasks.stream import Task

HOPS = 2
ROUNDING = 1e-5
"""Share of its outputs by which those of a node that has not changed may differ."""
LOOK_BYTES = 48
"""An edge's ends and their labels, while neighbours are compared."""

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]


class ContinualgnnConfig(Section):
    """ContinualGNN: detected nodes, replay and a penalty."""

    lambda_: float = Field(default=80.0, ge=0, alias="lambda", description="Weight of the penalty.")
    memory_nodes: int = Field(default=250, ge=1, description="Nodes kept in all, shared by the classes' counts.")
    detect_ratio: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Share of influenced nodes trained again, besides old nodes with new neighbours. "
        "For `tasks.inter_task_edges: true`.",
    )
    alpha: float = Field(default=0.0, ge=0, description="How much a node's importance raises its chance to be kept.")


class Continualgnn(Method):
    """Replay of a class-quota reservoir, EWC towards it, and detection where the graph grows."""

    name: ClassVar[str] = "continualgnn"
    choose_when: ClassVar[str] = "to compare with its paper: a memory of a few hundred nodes"
    place: ClassVar[int] = 120
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "memory_nodes nodes in all, features and label; last weights, importances"
    cost: ClassVar[str] = "one pass over the task's rows and the memory, and over the weights"
    reference: ClassVar[str] = "Streaming Graph Neural Networks via Continual Learning (Wang et al.)"
    settings: ClassVar[type[Section]] = ContinualgnnConfig
    weight_copies: ClassVar[int] = 4  # last weights and importances, as arrays and as tensors

    def __init__(self) -> None:
        self._memory = MemoryBank.empty(1)
        self._counts = np.zeros(0, np.int64)
        self._last: Arrays = {}

    def check(self, config: RunConfig) -> None:
        """Refuse what cannot be computed."""
        if config.tasks.inter_task_edges and config.learn.num_hops:
            raise UsageError(
                f"learn.features is {config.learn.features}, and continualgnn compares what the graph network says "
                "of old nodes before and after new edges",
                expected="learn.features: raw, or tasks.inter_task_edges: false",
            )

    def segments(self, context: Context) -> list[AnySegment]:
        """One mean over all that is trained on."""
        kept = labelled(self._memory) if len(self._memory) else None
        return segments_with_old(context, self._detect(context), kept)

    def _detect(self, context: Context) -> Ids:
        if not context.config.tasks.inter_task_edges or not self._last:
            return np.empty(0, np.int64)
        before = weights_of_state(self._last, "before", context.trainer.weights)
        return detect_old_nodes(context, before, context.config.section(ContinualgnnConfig).detect_ratio)

    def penalty(self, context: Context) -> Penalty | None:
        """lambda/2 sum F (theta - theta*)^2."""
        strength = context.config.section(ContinualgnnConfig).lambda_
        if not self._last or not strength:
            return None
        like = context.trainer.weights
        stars, importances = (weights_of_state(self._last, name, like).parameters() for name in ("before", "fisher"))

        def penalty(weights: SharedWeights) -> torch.Tensor:
            pairs = zip(weights.parameters(), stars, importances, strict=True)
            terms = [(f.detach() * (w - star.detach()).square()).sum() for w, star, f in pairs]
            return strength / 2 * torch.stack(terms).sum()

        return penalty

    def end_task(self, context: Context) -> None:
        """Update the memory, then measure what the weights mean to it."""
        task, config = context.task, context.config.section(ContinualgnnConfig)
        labels = context.stream.labels_of(task.train_ids)
        importance = None
        if config.alpha:
            graph, nodes = context.graph(task)
            importance = neighbour_importance(graph, nodes, task, context)
        rng = np.random.default_rng((context.config.seed, task.index))
        before = self._memory if len(self._memory) else MemoryBank.empty(context.trainer.weights.num_features)
        counts = np.zeros(context.trainer.weights.num_classes, np.int64)
        counts[: self._counts.size] = self._counts
        filled = fill_quotas(
            before.label, labels, counts, config.memory_nodes, importance=importance, alpha=config.alpha, rng=rng
        )
        ids = task.train_ids[filled.new]
        self._counts = filled.counts
        self._memory = before.select(filled.old).add(task.index, ids, labels[filled.new], context.bank_rows(task, ids))
        fisher = {f"fisher.{i}": square for i, square in enumerate(self._importances(context))}
        self._last = {**weights_state(context.trainer.weights, "before"), **fisher}

    def _importances(self, context: Context) -> list[NDArray[np.float32]]:
        """Squares of the memory's gradient; none matters where the memory is too small for a node of any class."""
        parameters = context.trainer.weights.parameters()
        if not len(self._memory):
            return [np.zeros(tuple(one.shape), np.float32) for one in parameters]
        kept = labelled(self._memory)
        context.trainer.gradient(context.attach([], [], kept, context.targets([kept], None)), with_dropout=False)
        return [np.square(one.grad.cpu().numpy()) for one in parameters]

    def state(self) -> Arrays:
        """Memory, counts of classes, last weights and their importances."""
        return {**bank_state(self._memory), **self._last, "counts": self._counts} if self._last else {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._memory = bank_of_state(state, 1)
        self._counts = state["counts"]
        self._last = {name: array for name, array in state.items() if name.startswith(("before.", "fisher."))}

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """Forgotten nodes leave the memory; of a forgotten class nothing is counted or held."""
        before = len(self._memory)
        self._memory = without_nodes(self._memory, gone)
        self._counts = np.array(self._counts)
        self._counts[gone.positions[gone.positions < self._counts.size]] = 0
        self._last = without_outputs(self._last, gone, head, ("before", "fisher"))
        return before - len(self._memory)

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """Rows of old nodes on their way to a file; a graph has those already."""
        if not config.tasks.inter_task_edges or config.learn.train_as == "gcn":
            return 0
        return gathering_bytes(shape.num_old_rows, shape.num_features)

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """Rows and 40 bytes a node beside the weights; an epoch over the memory at the end of a task.

        With ``alpha`` before that the labels across the edges of a block.
        """
        settings, plain, looking = config.section(ContinualgnnConfig), super().plan(config, sizes), 0
        if settings.alpha:
            looking = ROW_BYTES * sizes.num_nodes + LOOK_BYTES * min(sizes.num_edges, MAX_BLOCK_EDGES)
        ending = ROW_BYTES * sizes.num_rows + max(looking, sizes.epoch_bytes + GATHER_BYTES)
        nodes = settings.memory_nodes * (sizes.row_bytes + 40)
        return MethodPlan(
            state_bytes=plain.state_bytes + 8 * sizes.num_classes + nodes,
            work_bytes=_planned_detection(config, sizes) if config.tasks.inter_task_edges else 0,
            end=end_plan(ending, "an epoch over the memory, or labels of the task's neighbours"),
        )


def _planned_detection(config: RunConfig, sizes: TaskSizes) -> int:
    """The larger of detection, as a graph without its gradients, and training with rows of detected old nodes."""
    detecting = sizes.edge_bytes + _detection_bytes(sizes)
    detecting += sizes.rows_bytes(sizes.num_nodes, beside_bytes=detecting)
    if config.learn.train_as == "gcn":
        return max(detecting, sizes.training_bytes)
    gathering = gathering_bytes(sizes.num_old_rows, sizes.num_features)
    own = sizes.training_beside(gathering) - gathering
    return max(detecting, own + sizes.rows_bytes(sizes.num_old_rows, beside_bytes=own))


def _detection_bytes(shape: TaskShape) -> int:
    """What detection takes besides edges and rows that are held: a copy of those, layers and outputs of all nodes."""
    floats = shape.widths[0] + 3 * sum(shape.widths[1:-1]) + 4 * shape.widths[-1]
    return (4 * floats + ROW_BYTES) * shape.num_nodes


@dataclass(frozen=True)
class Filled:
    """A memory after new nodes came by: places of those kept of the old and of the new, and the classes' counts."""

    old: Ids
    new: Ids
    counts: Ids


def fill_quotas(
    old_labels: Ids,
    new_labels: Ids,
    counts: Ids,
    budget: int,
    *,
    importance: Scores | None = None,
    alpha: float = 0.0,
    rng: np.random.Generator,
) -> Filled:
    """The reservoir with a quota for every class; ``counts`` are those before the new nodes."""
    counts = counts + np.bincount(new_labels, minlength=counts.size)
    quotas = budget * counts // max(int(counts.sum()), 1)
    kept_old: list[int] = []
    kept_new: list[int] = []
    for label in np.flatnonzero(counts).tolist():
        quota = int(quotas[label])
        old = np.flatnonzero(old_labels == label)
        if old.size > quota:
            old = rng.choice(old, quota, replace=False)
        slots = [-1 - place for place in old.tolist()]  # old nodes are below 0, new ones from 0 on
        arriving = rng.permutation(np.flatnonzero(new_labels == label))
        chances = np.full(arriving.size, quota / counts[label])
        if importance is not None:
            chances *= 1 + alpha * importance[arriving]
        is_lucky = rng.random(arriving.size) < chances
        for node, wins in zip(arriving.tolist(), is_lucky.tolist(), strict=True):
            if len(slots) < quota:
                slots.append(node)
            elif wins and quota:
                slots[int(rng.integers(quota))] = node
        kept_old += [-1 - slot for slot in slots if slot < 0]
        kept_new += [slot for slot in slots if slot >= 0]
    return Filled(np.sort(np.array(kept_old, np.int64)), np.sort(np.array(kept_new, np.int64)), counts)


def neighbour_importance(graph: GraphStore, nodes: Ids, task: Task, context: Context) -> Scores:
    """sigmoid(10 share - 5) of every training node of a task; a node with no labelled neighbour has share 0."""
    known = np.full(nodes.size, -1, np.int64)
    trained = np.concatenate([task.train_ids, np.intersect1d(old_train_ids(context), nodes)])
    known[positions_of(nodes, trained)] = context.stream.labels_of(trained)
    num_known, num_other = np.zeros(nodes.size), np.zeros(nodes.size)
    for block, rows in graph.edges.stream_parts():
        targets = np.repeat(np.arange(block.start, block.stop), np.diff(rows.offsets))
        sources = rows.values.astype(np.int64)
        counted = (known[sources] >= 0) & (sources != targets)
        size = block.num_rows
        num_known[block.start : block.stop] = np.bincount(targets[counted] - block.start, minlength=size)
        counted &= known[sources] != known[targets]
        num_other[block.start : block.stop] = np.bincount(targets[counted] - block.start, minlength=size)
    share = num_other / np.maximum(num_known, 1)
    return np.asarray(1 / (1 + np.exp(5 - 10 * share[positions_of(nodes, task.train_ids)])))


def detect_old_nodes(context: Context, weights: SharedWeights, ratio: float) -> Ids:
    """Training nodes of old tasks that have changed, or are among the best ``ratio`` of all that the change reaches.

    Ids, ascending.
    """
    task = context.task
    previous = context.stream.seen(task)[-2]
    graph, nodes = context.graph(task)
    _, old_nodes = context.graph(previous)
    is_new = ~np.isin(nodes, old_nodes, assume_unique=True)
    averaging = StreamedPropagation(graph, context.resources, "mean")
    changed = averaging.spread(is_new, 1) > 0
    before = np.empty((nodes.size, weights.num_classes), np.float32)
    before[~is_new] = graph_outputs(context, weights, previous)
    shape = TaskShape(nodes.size, task.num_train, 0, weights.widths)
    rows = context.graph_rows(task, beside_bytes=_detection_bytes(shape))
    alone = np.flatnonzero(is_new)
    with torch.no_grad():
        before[alone] = weights.mlp(torch.from_numpy(rows.take(alone)).to(weights.device)).cpu().numpy()
    del rows  # the next line reads them again
    now = graph_outputs(context, weights, task)
    delta = np.abs(now - before).sum(axis=1)
    # A new node without neighbours is the same in both graphs, but not computed in the same way.
    delta[delta <= ROUNDING * np.abs(now).sum(axis=1)] = 0
    score = averaging.spread(np.where(changed, delta, 0), HOPS)
    reached = np.flatnonzero(score > 0)
    best = top_nodes(score, int(ratio * reached.size), candidates=reached)
    return np.intersect1d(np.union1d(nodes[best], nodes[changed]), old_train_ids(context))


@torch.no_grad()  # type: ignore[untyped-decorator]
def graph_outputs(context: Context, weights: SharedWeights, task: Task) -> NDArray[np.float32]:
    """Outputs of the graph network for all nodes of the graph that a task is trained on."""
    graph, _ = context.graph(task)
    config = context.config
    propagation = GraphPropagation(graph, context.resources, training_norm(config))
    shape = TaskShape(graph.num_nodes, task.num_train, 0, weights.widths)
    rows = context.graph_rows(task, beside_bytes=_detection_bytes(shape))
    x = rows.read_sparse(0, rows.num_rows) if rows.is_sparse else torch.from_numpy(rows.read(0, rows.num_rows))
    learn = config.learn
    logits = weights.to("cpu").gcn(x, propagation, encoder=learn.encoder, bias_place=learn.bias_place)
    return np.asarray(logits.numpy())
