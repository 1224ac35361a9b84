"""What is forgotten on request, nodes or a whole class, and how it leaves a stream of tasks and the stream's file.

A class keeps its place in the head, so that the places of all others stay; it is then of no task, is never predicted,
and has its place again where it comes back. A task may be left without nodes: its number stays, and it is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.tasks.members import Members
from ecgl_scale.tasks.split import Ids, hash_split, read_split, write_split
from ecgl_scale.tasks.stream_file import crc_of_positions

if TYPE_CHECKING:
    from ecgl_scale.tasks.task_nodes import Task

FORGOTTEN_CLASSES = "forgotten_classes"
"""What a model's file calls them."""


def _none() -> Ids:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Forgotten:
    """Nodes to forget, and classes of which every node is forgotten."""

    node_ids: Ids = field(default_factory=_none)
    """Ascending."""
    positions: Ids = field(default_factory=_none)
    """Head positions of classes."""

    def stays(self, node_ids: Ids, positions: Ids) -> Any:
        """For each of some nodes, given with the head positions of their classes, whether it stays."""
        return ~np.isin(node_ids, self.node_ids) & ~np.isin(positions, self.positions)


@dataclass(frozen=True)
class SplitWithout:
    """What is left of a stream's file."""

    gone: Forgotten
    """What was asked for, with every node of the classes, as far as the stream knows any of them."""
    split_hash: str
    tasks: tuple[tuple[tuple[int, ...], int], ...]
    """Classes and number of nodes of each task."""
    kept_ids: tuple[Ids, ...]
    """Nodes of each task."""


def write_split_without(path: Path, target: Path, gone: Forgotten) -> SplitWithout:
    """Write the file of a stream without what is forgotten; ``path`` itself stays.

    Raises
    ------
    InvalidInputError
        The file is damaged, or of a version that did not know the classes of its nodes.
    """
    read = read_split(path)
    if read.positions is None:
        raise InvalidInputError(
            "an earlier version wrote these tasks, without the classes of their nodes",
            where=path,
            fix="run the model again",
        )
    labels = [int(read.head["classes"][position]) for position in gone.positions.tolist()]
    left, positions, left_of_each = [], [], []
    leaving: list[Ids] = [_none()]
    tasks = []
    for task, (ids, parts), of_task in zip(read.head["tasks"], read.tasks, read.positions, strict=True):
        stays = gone.stays(ids, of_task)
        leaving.append(ids[~stays])
        left.append((ids[stays], parts[stays]))
        positions.append(of_task[stays])
        tasks.append({**task, "classes": [label for label in task["classes"] if label not in labels]})
        left_of_each.append((tuple(tasks[-1]["classes"]), int(stays.sum())))
    split_hash = hash_split(left)
    head = {**read.head, "labels_crc32c": crc_of_positions(positions), "split_hash": split_hash, "tasks": tasks}
    head.pop("version")
    write_split(target, head, left, positions)
    known = Forgotten(np.sort(np.concatenate(leaving)), gone.positions)
    return SplitWithout(known, split_hash, tuple(left_of_each), tuple(ids for ids, _ in left))


def task_without(task: Task, gone: Forgotten, positions: Ids) -> Task:
    """A task without what is forgotten; ``positions`` are those of its nodes' classes."""
    stays = gone.stays(task.node_ids, positions)
    is_kept = ~np.isin(task.positions, gone.positions)
    classes = [label for label, kept in zip(task.classes, is_kept.tolist(), strict=True) if kept]
    ids, parts = task.node_ids[stays], task.parts[stays]
    return replace(
        task,
        classes=tuple(classes),
        positions=task.positions[is_kept],
        members=Members.of(ids),
        parts=parts,
    )


def about_forgotten(classes: Sequence[int], of_tasks: Iterable[Sequence[int]]) -> dict[str, list[int]]:
    """What a model's file says of classes that no task has any more; nothing where there are none."""
    known = {label for of_task in of_tasks for label in of_task}
    gone = [label for label in classes if label not in known]
    return {FORGOTTEN_CLASSES: gone} if gone else {}


def num_outputs_after(tasks: Sequence[Task], num_seen: int, num_classes: int) -> int:
    """Outputs of a head that has the classes of the first ``num_seen`` tasks, those that were forgotten since too.

    Places are given in order of first appearance, so the first one that is new afterwards tells how many there were.
    """
    seen = np.concatenate([_none(), *(task.positions for task in tasks[:num_seen])])
    later = np.concatenate([_none(), *(task.positions for task in tasks[num_seen:])])
    return int(np.setdiff1d(later, seen).min(initial=num_classes))
