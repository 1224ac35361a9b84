"""SSM: sparsified subgraphs as memory, so that replayed nodes keep some of their neighbours (Zhang et al., ICDM 2022).

    task-IL    L = L_new + lambda sum over old tasks j of the CE on stored graph j, each a mean over its centre nodes
    class-IL   one mean over the training nodes of the task graph and the centre nodes of all stored graphs

Of each class of a task ``centre_nodes`` training nodes are drawn at random; then, hop by hop, every node reached last
adds at most ``neighbours[hop]`` of its in-neighbours that are not in yet, at ``random`` or (``degree``) with chances in
proportion to their in-degrees + 1. All edges among stored nodes are stored; only centre nodes have labels. The plain
setting of the paper's table is [0, 0]: centre nodes and the edges among them.

Trained as a graph network, messages run over the stored edges; trained as an MLP, edges play no part, and the centre
nodes' rows are replayed. lambda is ``learn.lambda``; in class-IL it plays no part. Neighbours that belong to another
task are not stored.
The public code counts a centre node once more in every epoch (class-IL), a slip that is not followed here.
Memory: 8 bytes a node of the task's graph while neighbours are drawn by degree; nothing else grows with the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.graph.adjacency import neighbours_of
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.loss import Labelled, Targets, target_fields
from ecgl_scale.learn.method.base import ROW_BYTES, Arrays, Context, Method, MethodPlan, TaskSizes, end_plan
from ecgl_scale.learn.method.kept import (
    bank_of_state,
    bank_state,
    draw_per_class,
    labelled,
    rows_of,
    scaled,
    training_norm,
)
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.store.features.dense import GATHER_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import positions_of

Ids = NDArray[np.int64]


class SsmConfig(Section):
    """Sparsified subgraph memory."""

    centre_nodes: int = Field(default=100, ge=1, description="Centre nodes kept of each class.")
    neighbours: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0, 0), strict=False, description="Neighbours kept of each node, hop by hop."
    )
    select: Literal["random", "degree"] = Field(default="random", description="How neighbours are chosen.")


class Ssm(Method):
    """Keeps a small graph of each task."""

    name: ClassVar[str] = "ssm"
    choose_when: ClassVar[str] = "as ecgl, where edges of old tasks may be kept"
    place: ClassVar[int] = 90
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "ssm.centre_nodes nodes a class and some of their neighbours: features, labels, edges"
    cost: ClassVar[str] = "one pass over the task's rows and the stored graphs"
    reference: ClassVar[str] = "Sparsified Subgraph Memory for Continual Graph Representation Learning (Zhang et al.)"
    settings: ClassVar[type[Section]] = SsmConfig

    def __init__(self) -> None:
        self._nodes = MemoryBank.empty(1)
        self._is_centre = np.zeros(0, np.bool_)
        self._indptr = np.zeros(1, np.int64)
        self._indices = np.zeros(0, np.int64)

    def segments(self, context: Context) -> list[AnySegment]:
        """The task, and all stored graphs as one graph without edges between them."""
        parts = context.parts([context.task])
        if not len(self._nodes):
            return context.attach([context.task], parts, None, context.targets(parts, None))
        centres = np.flatnonzero(self._is_centre)
        kept = labelled(self._nodes.select(centres))
        if context.config.setting == "class-il":
            new, old = context.targets([*parts, kept], None)
        else:
            (new,), (old,) = context.targets(parts, None), context.targets([kept], None)
            old = old if context.config.learn.reduction == "sum" else _mean_of_each(old, kept)
            old = scaled(old, context.config.learn.lambda_)
        if context.config.learn.train_as == "mlp":
            return context.attach([context.task], parts, kept, [new, old])
        stored = GraphSegment(
            rows=rows_of(self._nodes),
            propagation=GraphPropagation.from_csr(self._indptr, self._indices, training_norm(context.config)),
            local=centres,
            encoder=context.config.learn.encoder,
            bias_place=context.config.learn.bias_place,
            **target_fields(old),
        )
        return [*context.attach([context.task], parts, None, [new]), stored]

    def end_task(self, context: Context) -> None:
        """Draw and store the task's subgraph."""
        task, settings = context.task, context.config.section(SsmConfig)
        graph, nodes = context.graph(task)
        rng = np.random.default_rng((context.config.seed, task.index))
        chosen = draw_per_class(context.stream.labels_of(task.train_ids), settings.centre_nodes, rng)
        centres = positions_of(nodes, task.train_ids[chosen])
        own = positions_of(nodes, task.node_ids)
        local = add_neighbours(graph, centres, settings.neighbours, own, by_degree=settings.select == "degree", rng=rng)
        indptr, indices = edges_among(graph, local)
        ids = nodes[local]
        before = self._nodes if len(self._nodes) else MemoryBank.empty(context.trainer.weights.num_features)
        # Labels of neighbours are not looked at: they may be of any part of the split.
        labels = np.where(np.isin(local, centres), context.stream.labels_of(ids), 0)
        self._indices = np.concatenate([self._indices, indices + len(before)])
        self._indptr = np.concatenate([self._indptr, self._indptr[-1] + indptr[1:]])
        self._is_centre = np.concatenate([self._is_centre, np.isin(local, centres)])
        self._nodes = before.add(task.index, ids, labels, context.bank_rows(task, ids))

    def state(self) -> Arrays:
        """All stored graphs."""
        edges = {"is_centre": self._is_centre, "edges.indptr": self._indptr, "edges.indices": self._indices}
        return {**bank_state(self._nodes), **edges} if len(self._nodes) else {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._nodes = bank_of_state(state, 1)
        if len(self._nodes):
            self._is_centre = np.asarray(state["is_centre"], np.bool_)
            self._indptr, self._indices = state["edges.indptr"], state["edges.indices"]

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """Forgotten nodes leave the stored graphs with their edges."""
        del head
        nodes, before = self._nodes, len(self._nodes)
        stays = gone.stays(nodes.node_ids, np.where(self._is_centre, nodes.label, -1))
        targets = np.repeat(np.arange(before), np.diff(self._indptr))
        is_kept = stays[targets] & stays[self._indices]
        degrees = np.bincount(targets[is_kept], minlength=before)[stays]
        self._indices = (np.cumsum(stays) - 1)[self._indices[is_kept]]
        self._indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        self._nodes, self._is_centre = nodes.select(np.flatnonzero(stays)), self._is_centre[stays]
        return before - len(self._nodes)

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """Rows, 49 bytes a node, and about two edges a node; places and degrees of all nodes when some are kept."""
        settings = config.section(SsmConfig)
        num_nodes = reached = settings.centre_nodes * sizes.num_classes
        for budget in settings.neighbours:
            reached *= budget
            num_nodes += reached
        return MethodPlan(
            state_bytes=num_nodes * (sizes.row_bytes + 41 + 8 + 16),
            end=end_plan(ROW_BYTES * sizes.num_nodes + GATHER_BYTES, "places and degrees of the task's nodes"),
        )


def add_neighbours(
    graph: GraphStore,
    centres: Ids,
    budgets: tuple[int, ...],
    allowed: Ids,
    *,
    by_degree: bool,
    rng: np.random.Generator,
) -> Ids:
    """The centres and the neighbours drawn for them, ascending; all but ``allowed`` nodes are passed over."""
    degrees = graph.edges.in_degrees() if by_degree and any(budgets) else None
    inside, reached = np.sort(centres), np.sort(centres)
    for budget in budgets:
        if not budget or not reached.size:
            break
        offsets, sources = neighbours_of(graph, reached)
        found: list[Ids] = []
        for row in range(reached.size):
            candidates = np.unique(sources[offsets[row] : offsets[row + 1]])
            candidates = candidates[np.isin(candidates, allowed, assume_unique=True)]
            candidates = np.setdiff1d(candidates, inside, assume_unique=True)
            drawn = min(budget, candidates.size)
            weights = None if degrees is None else degrees[candidates] + 1.0
            chances = None if weights is None else weights / weights.sum()
            found.append(rng.choice(candidates, drawn, replace=False, p=chances) if drawn else candidates[:0])
        reached = np.setdiff1d(np.concatenate(found), inside)
        inside = np.union1d(inside, reached)
    return inside


def edges_among(graph: GraphStore, local: Ids) -> tuple[Ids, Ids]:
    """In-edges among some nodes (ascending) as CSR, numbered by their places; no self loops."""
    offsets, sources = neighbours_of(graph, local)
    places = np.minimum(np.searchsorted(local, sources), local.size - 1)
    is_kept = local[places] == sources
    kept_before = np.concatenate([[0], np.cumsum(is_kept)]).astype(np.int64)
    return kept_before[offsets], places[is_kept].astype(np.int64)


def _mean_of_each(targets: Targets, kept: Labelled) -> Targets:
    """Coefficients that make the loss a sum over tasks of each one's mean."""
    sums = np.bincount(kept.tasks, targets.coefficients)
    factors = (1.0 / np.where(sums > 0, sums, 1.0)).astype(np.float32)
    return replace(targets, coefficients=targets.coefficients * factors[kept.tasks])
