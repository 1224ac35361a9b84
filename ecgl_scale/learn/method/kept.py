"""What methods of replay have in common: kept nodes as state, and old nodes of the graph trained beside new ones.

Kept nodes of a method's own are a ``MemoryBank`` in its state; the run's bank is for methods that only ever add to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.graph.convolution import Norm, norm_of
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.loss import Labelled, Targets, target_fields
from ecgl_scale.learn.method.base import Arrays, Context
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import positions_of

Ids = NDArray[np.int64]

COLUMNS = ("node_ids", "task", "label", "importance", "diversity")
SPARSE = ("indptr", "indices", "values")


def bank_state(bank: MemoryBank) -> Arrays:
    """A bank as arrays by name; nothing while it is empty."""
    if not len(bank):
        return {}
    rows = bank.rows
    kept = {name: getattr(rows, name) for name in SPARSE} if isinstance(rows, CsrBlock) else {"rows": rows}
    return {**{name: getattr(bank, name) for name in COLUMNS}, **kept, "num_features": np.array([bank.num_features])}


def bank_of_state(state: Mapping[str, NDArray[Any]], num_features: int) -> MemoryBank:
    """What ``bank_state`` gave; an empty bank where there is none."""
    if "node_ids" not in state:
        return MemoryBank.empty(num_features)
    rows = state["rows"] if "rows" in state else CsrBlock(*(state[name] for name in SPARSE))
    columns: dict[str, Any] = {name: state[name] for name in COLUMNS}
    return MemoryBank(int(state["num_features"][0]), rows=rows, **columns)


def without_nodes(bank: MemoryBank, gone: Forgotten) -> MemoryBank:
    """Kept nodes without those that are forgotten."""
    return bank.select(np.flatnonzero(gone.stays(bank.node_ids, bank.label)))


def without_outputs(
    state: Mapping[str, NDArray[Any]], gone: Forgotten, head: Sequence[int], names: Sequence[str]
) -> Arrays:
    """Arrays by name, with zeros for outputs of forgotten classes in ``name.i``, i being of the head.

    Where the class comes back, its outputs are then held to nothing and learned as new ones are.
    """
    found = dict(state)
    for name in (f"{name}.{place}" for name in names for place in head):
        if name in found:
            found[name] = np.array(found[name])
            found[name][gone.positions[gone.positions < len(found[name])]] = 0
    return found


def rows_of(bank: MemoryBank) -> RowCache:
    """Rows of kept nodes, sparse ones as they are."""
    if isinstance(bank.rows, CsrBlock):
        return RowCache.from_csr(bank.rows, bank.num_features)
    return RowCache.from_array(bank.dense_rows())


def labelled(bank: MemoryBank) -> Labelled:
    """Rows, labels and tasks of kept nodes."""
    return Labelled(bank.label, bank.task, rows_of(bank))


def scaled(targets: Targets, factor: float) -> Targets:
    """Targets that are ``factor`` times as heavy."""
    return replace(targets, coefficients=targets.coefficients * np.float32(factor))


def training_norm(config: RunConfig) -> Norm:
    """How messages are weighed in training, as at inference: ``sage`` averages whatever ``infer.norm`` says."""
    return norm_of(config.learn.encoder, config.infer.norm)


def old_train_ids(context: Context) -> Ids:
    """Training nodes of earlier tasks, ascending: for streams whose graph keeps its old nodes."""
    earlier = context.stream.seen(context.task)[:-1]
    return np.sort(np.concatenate([np.empty(0, np.int64), *(task.train_ids for task in earlier)]))


def segments_with_old(context: Context, old_ids: Ids, kept: Labelled | None) -> list[AnySegment]:
    """One mean over the task's training nodes, old nodes that are in its graph, and kept rows without edges."""
    task = context.task
    places = [(other, np.intersect1d(old_ids, other.train_ids)) for other in context.stream.seen(task)[:-1]]
    old = [(other, ids) for other, ids in places if ids.size]
    kept_parts = [] if kept is None else [kept]
    (own,) = context.segments([task], None)
    if isinstance(own, GraphSegment):
        ids = np.concatenate([task.train_ids, *(ids for _, ids in old)])
        tasks = np.concatenate([np.full(ids.size, one.index) for one, ids in [(task, task.train_ids), *old]])
        targets = context.targets([Labelled(context.stream.labels_of(ids), tasks), *kept_parts], None)
        local = positions_of(context.graph(task)[1], ids)
        first: AnySegment = replace(own, local=local, **target_fields(targets[0]))
        return [first, *context.attach([], [], kept, targets[1:])]
    parts = [Labelled.of_task(task.index, own.labels, own.rows)]
    for other, ids in old:
        rows = context.rows(other, ids, f"old-{other.index}")
        parts.append(Labelled.of_task(other.index, context.stream.labels_of(ids), rows))
    targets = context.targets([*parts, *kept_parts], None)
    return context.attach([task, *(other for other, _ in old)], parts, kept, targets)


def draw_per_class(labels: NDArray[np.int64], counts: Mapping[int, int] | int, rng: np.random.Generator) -> Ids:
    """Places of so many rows of each class, or all of a smaller one, at random and ascending."""
    chosen: list[Sequence[int] | Ids] = []
    for label in np.unique(labels).tolist():
        places = np.flatnonzero(labels == label)
        wanted = counts if isinstance(counts, int) else counts.get(label, 0)
        chosen.append(rng.choice(places, min(wanted, places.size), replace=False))
    return np.sort(np.concatenate([np.empty(0, np.int64), *chosen])).astype(np.int64)


def weights_state(weights: SharedWeights, name: str) -> Arrays:
    """Copies of all weights, as arrays ``name.0``, ``name.1``, ..."""
    return {f"{name}.{i}": np.array(one.detach().cpu().numpy()) for i, one in enumerate(weights.parameters())}


def weights_of_state(state: Mapping[str, NDArray[Any]], name: str, like: SharedWeights) -> SharedWeights:
    """What ``weights_state`` gave, in the shape of ``like``: outputs that are new since are zero, as they began."""
    names = [f"{name}.{index}" for index in range(len(like.parameters()))]
    return like.copy().take([torch.from_numpy(np.array(state[name])) for name in names])
