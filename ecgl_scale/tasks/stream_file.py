"""A stream of tasks as a file: written whole, read again and compared with the store it is opened with.

A store may have grown since: nodes that came later are in no task yet. It may have lost nodes, whose labels are then
-1: a task knows the classes of its own nodes by itself. What it may not have is another label for a node of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.split import Ids, SplitFile, hash_split, read_column, read_split, write_split
from ecgl_scale.tasks.task_nodes import DroppedClass, SplitSettings, Task, make_task

if TYPE_CHECKING:
    from ecgl_scale.tasks.stream import TaskStream


@dataclass(frozen=True, eq=False)
class StreamParts:
    """What a stream of tasks is made of."""

    tasks: list[Task]
    classes: tuple[int, ...]
    dropped: tuple[DroppedClass, ...]
    settings: SplitSettings
    positions: list[Ids]
    """Head positions of each task's nodes."""


def write_stream(path: Path, stream: TaskStream) -> None:
    """Write tasks and split as one Parquet file; see ``split.write_split``."""
    positions = [stream.labels_of(task.node_ids).astype(np.int32) for task in stream]
    head = {
        "classes": list(stream.classes),
        "dropped": [[gone.label, gone.num_nodes, gone.reason] for gone in stream.dropped],
        "labels_crc32c": crc_of_positions(positions),
        "num_nodes": stream.num_nodes,
        "seed": stream.seed,
        "settings": asdict(stream.settings),
        "split_hash": stream.split_hash,
        "tasks": [{"name": task.name, "classes": list(task.classes), "generation": task.generation} for task in stream],
    }
    write_split(path, head, ((task.node_ids, task.parts) for task in stream), positions)


def read_stream(path: Path, graph: GraphStore, *, may_have_grown: bool) -> StreamParts:
    """Read what ``write_stream`` wrote, for the same store, or for one that has grown from it.

    Raises
    ------
    InvalidInputError
        The file is damaged, or its nodes are not those of ``graph`` or have other labels there.
    """
    read = read_split(path)
    head = read.head
    try:
        tasks = [
            make_task(
                index, str(of["name"]), of["classes"], head["classes"], ids, parts, generation=of.get("generation")
            )
            for index, (of, (ids, parts)) in enumerate(zip(head["tasks"], read.tasks, strict=True))
        ]
        dropped = tuple(DroppedClass(int(gone[0]), int(gone[1]), str(gone[2])) for gone in head["dropped"])
        wanted = (int(head["num_nodes"]), str(head["split_hash"]), int(head["labels_crc32c"]))
        classes, settings = tuple(int(label) for label in head["classes"]), _settings(head)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidInputError(f"this is no file of tasks: {error!r}", where=path) from error
    num_nodes = wanted[0]
    if num_nodes > graph.num_nodes or (num_nodes < graph.num_nodes and not may_have_grown):
        raise other_store(path, f"it has {num_nodes:,} nodes", graph)
    if wanted[1] != hash_split(read.tasks):
        raise InvalidInputError("the tasks do not match the file's own hash", where=path, fix="make them again")
    if any(
        ids.size and not (ids[0] >= 0 and ids[-1] < num_nodes and np.all(ids[1:] > ids[:-1])) for ids, _ in read.tasks
    ):
        raise InvalidInputError("the nodes of a task are not in order", where=path)
    positions = _positions(path, graph, tasks, classes, read, may_lack=may_have_grown)
    if crc_of_positions(positions) != wanted[2]:
        raise other_store(path, "nodes of its tasks have other labels here", graph)
    return StreamParts(tasks, classes, dropped, settings, positions)


def _settings(head: dict[str, Any]) -> SplitSettings:
    """How the tasks were split; a file of an earlier version knows the seed alone."""
    given = dict(head.get("settings") or {"seed": head["seed"]})
    fractions = given.get("fractions", SplitSettings.fractions)
    return SplitSettings(**{**given, "fractions": (float(fractions[0]), float(fractions[1]), float(fractions[2]))})


def _positions(
    path: Path,
    graph: GraphStore,
    tasks: Sequence[Task],
    classes: tuple[int, ...],
    read: SplitFile,
    *,
    may_lack: bool,
) -> list[Ids]:
    """Head positions as the file has them, which the store's labels must not contradict."""
    position_of, found = positions_by_label(classes), []
    for task in tasks:
        labels = read_column(graph, LABEL, task.node_ids)
        known = (labels >= 0) & (labels < position_of.size)
        here = np.where(known, position_of[np.where(known, labels, 0)], -1)
        if read.positions is None or not may_lack:
            found.append(here)
            continue
        kept = read.positions[task.index]
        if ((labels >= 0) & (here != kept)).any():
            raise other_store(path, f"nodes of task {task.index} have other labels here", graph)
        found.append(kept)
    return found


def positions_by_label(classes: Sequence[int]) -> Ids:
    """Head position by label id, -1 for none."""
    positions = np.full(max(classes, default=-1) + 1, -1, np.int64)
    positions[list(classes)] = np.arange(len(classes))
    return positions


def crc_of_positions(positions: Sequence[NDArray[Any]]) -> int:
    """crc32c of the head positions of all tasks' nodes, in order."""
    crc = 0
    for of_task in positions:
        crc = crc32c_of(np.ascontiguousarray(of_task, "<i4"), crc)
    return crc


def other_store(path: Path, how: str, graph: GraphStore) -> InvalidInputError:
    """The error for tasks that are opened with a store they are not of."""
    return InvalidInputError(
        f"the tasks are of another store: {how}", where=path, expected=f"the store they were made of, not {graph.path}"
    )
