"""Which nodes become the next task of a stream: those that are asked for, have a label, and are in no task yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.split import Ids, missing_column, read_column
from ecgl_scale.tasks.task_nodes import DroppedClass, count_labels, too_small
from ecgl_scale.tasks.where import Where

if TYPE_CHECKING:
    from ecgl_scale.tasks.stream import TaskStream


def next_nodes(stream: TaskStream, graph: GraphStore, asked: str | Any) -> tuple[Ids, list[DroppedClass]]:
    """Ids of the next task's nodes, and classes that are left out of it because they are too small so far.

    ``asked`` is a condition (see ``where``) or ids. A condition chooses among nodes that are in no task yet; an id of
    such a node is refused.

    Raises
    ------
    UsageError
        An id that is no node, or is in a task already; a condition that makes no sense.
    InvalidInputError
        There is no node to learn: the message says why.
    """
    what = f"nodes with {Where.parse(asked)}" if isinstance(asked, str) else "nodes that were given"
    ids = Where.parse(asked).select(graph) if isinstance(asked, str) else np.unique(checked_ids(asked, graph.num_nodes))
    is_learned = np.isin(ids, np.concatenate([np.empty(0, np.int64), *(task.node_ids for task in stream)]))
    if not isinstance(asked, str) and is_learned.any():
        raise UsageError(
            f"node {ids[int(np.argmax(is_learned))]} is in a task already", expected="nodes that are in no task yet"
        )
    fresh = ids[~is_learned]
    labels = read_column(graph, LABEL, fresh)
    labelled, of_class = fresh[labels >= 0], labels[labels >= 0]
    counts = _arrived(stream, graph, labelled)
    smallest = stream.settings.min_class_nodes
    small = too_small(np.unique(of_class).tolist(), counts, smallest)
    found = labelled[counts[of_class] >= smallest]
    if not found.size:
        raise InvalidInputError(
            f"there is nothing to learn: of {ids.size:,} {what}, {ids.size - fresh.size:,} are in a task already, "
            f"{fresh.size - labelled.size:,} have no label and {labelled.size:,} are of classes with fewer than "
            f"{smallest} nodes",
            where=graph.path,
            expected="labelled nodes that are in no task yet",
        )
    return found, small


def _arrived(stream: TaskStream, graph: GraphStore, ids: Ids) -> Ids:
    """Labelled nodes by label id: of a stream by time, those that have come when the last of ``ids`` has."""
    column = stream.settings.column
    if column is None:
        return count_labels(graph)
    nodes = graph.nodes
    if nodes is None or column not in nodes.names:
        raise missing_column(graph, column)
    counts = np.zeros(graph.num_classes or 0, np.int64)
    if not ids.size:
        return counts
    last = np.nanmax(read_column(graph, column, ids))
    for (_, labels), (_, arrivals) in zip(nodes.blocks(LABEL), nodes.blocks(column), strict=True):
        counts += np.bincount(labels[(labels >= 0) & (arrivals <= last)], minlength=counts.size)
    return counts


def name_of(stream: TaskStream, graph: GraphStore, asked: str | Any, classes: list[int]) -> str:
    """What a task is called that nobody has named: by its condition, or by its classes, as streams name theirs."""
    if isinstance(asked, str):
        where = Where.parse(asked)
        if where.operator == "==" and where.column == stream.settings.column:
            return f"{where.column} {where.values[0]}"
        if where.column != LABEL:
            return str(where)
    return "classes " + ", ".join(graph.class_name(label) for label in classes)
