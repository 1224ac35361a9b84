"""The stream of tasks: which classes, which nodes, which of them train, validate and test.

A task is a block of classes, or a period of an arrival column. Labels of the store are *label ids*; the place of a
class in the model's output is its *head position*, given in order of first appearance, within a task by label id.
Two passes over the label column (and the arrival column). Memory: 2 bytes a node, and 16 a node of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.events import EventSink, Note, ignore_events
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL, SPLIT
from ecgl_scale.tasks.split import (
    Ids,
    Parts,
    hash_split,
    missing_column,
    read_column,
    read_split,
    split_seeded,
    write_split,
)
from ecgl_scale.tasks.task_nodes import (
    DroppedClass,
    SplitSettings,
    Task,
    check_parts,
    checked_order,
    collect_ids,
    count_labels,
    find_beginnings,
    make_task,
    too_small,
)

__all__ = ["DroppedClass", "Task", "TaskStream"]

MAX_PERIODS = 1000
"""More distinct arrival values are time stamps, not periods."""


class TaskStream(Sequence[Task]):
    """The tasks in their order; ``len``, iteration and indices as of a list."""

    def __init__(
        self,
        graph: GraphStore,
        tasks: Sequence[Task],
        *,
        classes: tuple[int, ...],
        dropped: tuple[DroppedClass, ...] = (),
        seed: int = 0,
    ) -> None:
        self._tasks = tuple(replace(task, stream=self) for task in tasks)
        self.classes = classes
        self.dropped = dropped
        self.seed = seed
        self.num_nodes = graph.num_nodes
        self.class_names = graph.class_names
        self.split_hash = hash_split((task.node_ids, task.parts) for task in tasks)
        self._head = np.full(graph.num_nodes, -1, np.int16 if len(classes) < 1 << 15 else np.int32)
        position_of = _position_of(classes)
        for task in tasks:
            self._head[task.node_ids] = position_of[read_column(graph, LABEL, task.node_ids)]

    @classmethod
    def class_incremental(
        cls,
        graph: GraphStore,
        *,
        classes_per_task: int = 2,
        seed: int = 0,
        class_order: Sequence[int | str] | None = None,
        split: str = "seeded",
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        min_class_nodes: int = 2,
        on_event: EventSink = ignore_events,
    ) -> TaskStream:
        """Tasks of ``classes_per_task`` classes, by label id or in ``class_order``.

        Classes with fewer than ``min_class_nodes`` labelled nodes are left out before the blocks are cut, and so is a
        class that would be alone in the last block, if others are not; ``dropped`` and a ``Note`` say so.

        Parameters
        ----------
        class_order
            Label ids, or the names of classes where they have names, in the order in which they come; classes that
            it leaves out are in no task.
        split
            ``seeded`` by ``fractions`` for every class on its own (see ``split``), or ``store``: its column ``split``.

        Raises
        ------
        UsageError
            No labels, no split column, or arguments that make no sense.
        InvalidInputError
            A task has no node to train on, or no task is left.
        """
        settings = SplitSettings.checked(graph, seed, split, fractions, min_class_nodes)
        if classes_per_task < 1:
            raise UsageError(f"there are {classes_per_task} classes a task", expected="at least 1")
        counts = count_labels(graph)
        order = checked_order(class_order, counts, graph)
        given = set(order)
        dropped = [
            DroppedClass(label, int(counts[label]), "not in the class order")
            for label in np.flatnonzero(counts).tolist()
            if label not in given
        ]
        dropped += too_small(order, counts, min_class_nodes)
        order = [label for label in order if counts[label] >= min_class_nodes]
        blocks = [order[start : start + classes_per_task] for start in range(0, len(order), classes_per_task)]
        if classes_per_task > 1 and blocks and len(blocks[-1]) == 1:
            [label] = blocks.pop()
            dropped.append(DroppedClass(label, int(counts[label]), "alone in the last task"))
        task_of_label = np.full(counts.size, -1, np.int64)
        for index, block in enumerate(blocks):
            task_of_label[block] = index
        names = ["classes " + ", ".join(graph.class_name(label) for label in sorted(block)) for block in blocks]

        def tasks_of(start: int, labels: NDArray[Any]) -> Ids:
            del start
            tasks: Ids = task_of_label[labels]
            return tasks

        return cls._assemble(graph, names, tasks_of, settings, dropped, on_event)

    @classmethod
    def time_incremental(
        cls,
        graph: GraphStore,
        *,
        column: str,
        seed: int = 0,
        split: str = "seeded",
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        min_class_nodes: int = 2,
        on_event: EventSink = ignore_events,
    ) -> TaskStream:
        """A task for each distinct value of a node column (a year, a release), ascending; classes may return.

        A node is in the task of its value, if it has a label of a class that by then has ``min_class_nodes`` or more
        labelled nodes; those that came before that are in no task. NaN is no value. The seeded split is made for every
        class within its task; a class with a single node there trains on it.

        Raises
        ------
        UsageError, InvalidInputError
            As ``class_incremental``; also for a column that is missing or has more than 1,000 values.
        """
        settings = SplitSettings.checked(graph, seed, split, fractions, min_class_nodes, is_by_time=True)
        nodes = graph.nodes
        if nodes is None or column not in nodes.names:
            raise missing_column(graph, column)
        counts, begins = find_beginnings(graph, column, min_class_nodes)
        dropped = too_small(np.flatnonzero(counts).tolist(), counts, min_class_nodes)

        def has_begun(labels: NDArray[Any], arrivals: NDArray[Any]) -> NDArray[np.bool_]:
            return np.asarray((counts[labels] >= min_class_nodes) & (arrivals >= begins[labels]))

        values: NDArray[Any] = np.empty(0)
        for (_, labels), (_, arrivals) in zip(nodes.blocks(LABEL), nodes.blocks(column), strict=True):
            found = np.unique(arrivals[(labels >= 0) & has_begun(labels, arrivals)])
            values = np.union1d(values, found) if values.size else found
            if values.size > MAX_PERIODS:
                raise UsageError(
                    f"column {column!r} has more than {MAX_PERIODS:,} distinct values",
                    where=graph.path,
                    expected="one value a period",
                    fix="add a column of years, months or other periods",
                )
        batches = dict(nodes.blocks(column))

        def tasks_of(start: int, labels: NDArray[Any]) -> Ids:
            arrivals = batches[start]
            periods = np.minimum(np.searchsorted(values, arrivals), max(values.size - 1, 0))
            return np.where(has_begun(labels, arrivals) & (values[periods] == arrivals), periods, -1)

        names = [f"{column} {value}" for value in values.tolist()]
        return cls._assemble(graph, names, tasks_of, settings, dropped, on_event)

    @classmethod
    def _assemble(
        cls,
        graph: GraphStore,
        names: Sequence[str],
        tasks_of: Callable[[int, NDArray[Any]], Ids],
        settings: SplitSettings,
        dropped: Sequence[DroppedClass],
        on_event: EventSink,
    ) -> TaskStream:
        if not names:
            raise InvalidInputError(
                "there is no task: the store has too few classes or labelled nodes", where=graph.path
            )
        for gone in dropped:
            text = f"class {graph.class_name(gone.label)} ({gone.num_nodes:,} nodes) is in no task: {gone.reason}"
            on_event(Note(text, is_warning=True))
        tasks: list[Task] = []
        classes: list[int] = []
        for index, ids in enumerate(collect_ids(graph, len(names), tasks_of)):
            labels = read_column(graph, LABEL, ids)
            if settings.split == "seeded":
                period = index if settings.is_by_time else None
                parts: Parts = split_seeded(labels, settings.fractions, seed=settings.seed, period=period)
            else:
                parts = np.asarray(read_column(graph, SPLIT, ids), np.int8)
            of_task = np.unique(labels).tolist()
            known = set(classes)
            classes += [label for label in of_task if label not in known]
            tasks.append(make_task(index, names[index], of_task, classes, ids, parts))
            check_parts(graph, tasks[-1], labels, parts, on_event)
        return cls(graph, tasks, classes=tuple(classes), dropped=tuple(dropped), seed=settings.seed)

    @property
    def num_classes(self) -> int:
        """Classes of all tasks: the width of the model's head in the end."""
        return len(self.classes)

    @cached_property
    def labels(self) -> Ids:
        """Head position of every node of the store, -1 in no task. Memory: 8 bytes a node; ``labels_of`` needs none."""
        return self._head.astype(np.int64)

    def labels_of(self, ids: Ids) -> Ids:
        """Head positions of some nodes, -1 in no task."""
        return self._head[ids].astype(np.int64)

    def seen(self, task: Task) -> list[Task]:
        """The tasks up to ``task``, itself included."""
        return list(self._tasks[: self._index(task) + 1])

    def num_seen_classes(self, task: Task) -> int:
        """Width of a head that has all classes up to ``task``."""
        return max(int(earlier.positions.max(initial=-1)) for earlier in self.seen(task)) + 1

    def seen_positions(self, task: Task) -> Ids:
        """Head positions of all classes up to ``task``, ascending."""
        return np.unique(np.concatenate([earlier.positions for earlier in self.seen(task)]))

    def _index(self, task: Task) -> int:
        if not 0 <= task.index < len(self._tasks) or self._tasks[task.index] is not task:
            raise UsageError(f"task {task.index} ({task.name}) is not of this stream")
        return task.index

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __repr__(self) -> str:
        return f"TaskStream({len(self)} tasks, {self.num_classes} classes, split {self.split_hash[:12]})"

    def save(self, path: str | Path) -> None:
        """Write tasks and split as one Parquet file; see ``split.write_split``."""
        head = {
            "classes": list(self.classes),
            "dropped": [[gone.label, gone.num_nodes, gone.reason] for gone in self.dropped],
            "labels_crc32c": self._labels_crc(),
            "num_nodes": self.num_nodes,
            "seed": self.seed,
            "split_hash": self.split_hash,
            "tasks": [{"name": task.name, "classes": list(task.classes)} for task in self],
        }
        write_split(Path(path), head, [(task.node_ids, task.parts) for task in self])

    @classmethod
    def load(cls, path: str | Path, graph: GraphStore) -> TaskStream:
        """Read what ``save`` wrote, for the same store.

        Raises
        ------
        InvalidInputError
            The file is damaged, or its nodes are not those of ``graph`` or have other labels there.
        """
        path = Path(path)
        read = read_split(path)
        head = read.head
        try:
            tasks = [
                make_task(index, str(of["name"]), of["classes"], head["classes"], ids, parts)
                for index, (of, (ids, parts)) in enumerate(zip(head["tasks"], read.tasks, strict=True))
            ]
            dropped = tuple(DroppedClass(int(gone[0]), int(gone[1]), str(gone[2])) for gone in head["dropped"])
            wanted = (int(head["num_nodes"]), str(head["split_hash"]), int(head["labels_crc32c"]))
            classes, seed = tuple(int(label) for label in head["classes"]), int(head["seed"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this is no file of tasks: {error!r}", where=path) from error
        if wanted[0] != graph.num_nodes:
            raise _other_store(path, f"it has {wanted[0]:,} nodes", graph)
        if wanted[1] != hash_split(read.tasks):
            raise InvalidInputError("the tasks do not match the file's own hash", where=path, fix="make them again")
        if any(
            ids.size and not (ids[0] >= 0 and ids[-1] < graph.num_nodes and np.all(ids[1:] > ids[:-1]))
            for ids, _ in read.tasks
        ):
            raise InvalidInputError("the nodes of a task are not in order", where=path)
        position_of = _position_of(classes)
        for task in tasks:
            labels = read_column(graph, LABEL, task.node_ids)
            if labels.size and (labels.min() < 0 or labels.max() >= position_of.size):
                raise _other_store(path, f"nodes of task {task.index} have other labels here", graph)
        stream = cls(graph, tasks, classes=classes, dropped=dropped, seed=seed)
        if stream._labels_crc() != wanted[2]:
            raise _other_store(path, "nodes of its tasks have other labels here", graph)
        return stream

    def _labels_crc(self) -> int:
        crc = 0
        for task in self:
            crc = crc32c_of(np.ascontiguousarray(self._head[task.node_ids], "<i4"), crc)
        return crc


def _position_of(classes: Sequence[int]) -> Ids:
    """Head position by label id, -1 for none."""
    positions = np.full(max(classes, default=-1) + 1, -1, np.int64)
    positions[list(classes)] = np.arange(len(classes))
    return positions


def _other_store(path: Path, how: str, graph: GraphStore) -> InvalidInputError:
    return InvalidInputError(
        f"the tasks are of another store: {how}", where=path, expected=f"the store they were made of, not {graph.path}"
    )
