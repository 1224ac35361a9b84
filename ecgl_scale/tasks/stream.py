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
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import EventSink, Note, ignore_events
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.arrivals import name_of, next_nodes
from ecgl_scale.tasks.forgotten import Forgotten, num_outputs_after, task_without
from ecgl_scale.tasks.members import position_dtype
from ecgl_scale.tasks.periods import Periods
from ecgl_scale.tasks.split import Ids, hash_split, read_column
from ecgl_scale.tasks.stream_file import positions_by_label, read_stream, write_stream
from ecgl_scale.tasks.task_nodes import (
    DroppedClass,
    SplitSettings,
    Task,
    at_generation,
    class_blocks,
    collect_ids,
    split_task,
    too_small,
)

__all__ = ["DroppedClass", "Task", "TaskStream"]


class SplitOptions(TypedDict, total=False):
    """How the nodes of tasks are split, as the keywords of ``class_incremental`` of the same names."""

    seed: int
    split: str
    fractions: Sequence[float]
    min_class_nodes: int


class TaskStream(Sequence[Task]):
    """The tasks in their order; ``len``, iteration and indices as of a list."""

    def __init__(
        self,
        graph: GraphStore,
        tasks: Sequence[Task],
        *,
        classes: tuple[int, ...],
        positions: Sequence[NDArray[Any]],
        dropped: tuple[DroppedClass, ...] = (),
        settings: SplitSettings,
    ) -> None:
        self._tasks = tuple(replace(task, stream=self) for task in tasks)
        self.classes = classes
        self.dropped = dropped
        self.settings = settings
        self.num_nodes = graph.num_nodes
        self.class_names = graph.class_names
        self.split_hash = hash_split((task.node_ids, task.parts) for task in self._tasks)
        self._head = np.full(graph.num_nodes, -1, position_dtype(len(classes)))
        for task, of_task in zip(tasks, positions, strict=True):
            self._head[task.node_ids] = of_task

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
        blocks, dropped, num_labels = class_blocks(graph, classes_per_task, class_order, min_class_nodes)
        task_of_label = np.full(num_labels, -1, np.int64)
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
        settings = SplitSettings.checked(graph, seed, split, fractions, min_class_nodes, is_by_time=True, column=column)
        periods = Periods.find(graph, column, min_class_nodes)
        dropped = too_small(np.flatnonzero(periods.counts).tolist(), periods.counts, min_class_nodes)
        names = [f"{column} {value}" for value in periods.values.tolist()]
        return cls._assemble(graph, names, periods.of_rows, settings, dropped, on_event)

    @classmethod
    def of_generations(
        cls, graph: GraphStore, *, on_event: EventSink = ignore_events, **options: Unpack[SplitOptions]
    ) -> TaskStream:
        """A task for each generation of a store that grows: its labelled nodes, with the edges there were by then.

        Classes may return. A class counts from the generation on in which it has ``min_class_nodes`` nodes; a
        generation without nodes to learn is no task.
        """
        stream = cls.empty(graph, **options)
        for info in graph.generations:
            own, ids = at_generation(graph, info.number), np.arange(info.first_node, info.num_nodes)
            try:
                stream = stream.add(own, ids, f"generation {info.number}", on_event=on_event)
            except InvalidInputError as error:
                on_event(Note(f"generation {info.number} is no task: {error.what}", is_warning=True))
        if not len(stream):
            raise InvalidInputError("there is no task: no generation has nodes to learn", where=graph.path)
        return stream._with(graph, [], on_event)

    @classmethod
    def empty(cls, graph: GraphStore, **options: Unpack[SplitOptions]) -> TaskStream:
        """A stream without tasks, to ``add`` them one by one; classes may return."""
        settings = SplitSettings.checked(graph, **options, is_by_time=True)
        return cls(graph, [], classes=(), positions=[], settings=settings)

    def add(
        self, graph: GraphStore, nodes: str | Any, name: str | None = None, *, on_event: EventSink = ignore_events
    ) -> TaskStream:
        """A stream that is one task longer; this one stays as it is.

        Parameters
        ----------
        graph
            The store that the stream is of, which may have grown.
        nodes
            Ids, or a condition such as ``"year == 2024"`` that chooses among nodes which are in no task yet. Nodes
            without a label, and those of classes that are too small so far, are left out.

        Raises
        ------
        UsageError, InvalidInputError
            Nodes that are none or are in a task, or nothing to learn: see ``arrivals``.
        """
        ids, small = next_nodes(self, graph, nodes)
        for gone in small:
            about = f"class {graph.class_name(gone.label)} ({gone.num_nodes:,} nodes)"
            text = f"{about} is not in task {len(self)}: {gone.reason}"
            on_event(Note(text, is_warning=True))
        classes = np.unique(read_column(graph, LABEL, ids)).tolist()
        return self._with(graph, [(name or name_of(self, graph, nodes, classes), graph, ids)], on_event)

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
        stream = cls(graph, [], classes=(), positions=[], dropped=tuple(dropped), settings=settings)
        ids = collect_ids(graph, len(names), tasks_of)
        return stream._with(graph, [(name, graph, of_task) for name, of_task in zip(names, ids, strict=True)], on_event)

    def _with(
        self,
        graph: GraphStore,
        more: Sequence[tuple[str, GraphStore, Ids]],
        on_event: EventSink,
        dropped: Sequence[DroppedClass] = (),
    ) -> TaskStream:
        """This stream and more tasks: the name of each, the generation that it is of, and its nodes."""
        tasks, classes = list(self._tasks), self.classes
        positions: list[NDArray[Any]] = [self._head[task.node_ids] for task in tasks]
        for name, own, ids in more:
            named = (len(tasks), name)
            task, labels, classes = split_task(own, classes, named, ids, self.settings, on_event)
            tasks.append(task)
            positions.append(positions_by_label(classes)[labels].astype(position_dtype(len(classes)), copy=False))
        return TaskStream(
            graph,
            tasks,
            classes=classes,
            positions=positions,
            dropped=(*self.dropped, *dropped),
            settings=self.settings,
        )

    def hash_of(self, num_tasks: int) -> str:
        """The hash of the first tasks and their split, as ``split_hash`` is that of all."""
        return hash_split((task.node_ids, task.parts) for task in self._tasks[:num_tasks])

    def until(self, graph: GraphStore, num_tasks: int) -> TaskStream:
        """The stream of the first tasks alone, with the classes that they have."""
        return self._of_these(graph, self._tasks[:num_tasks])

    def without_generations(self, graph: GraphStore) -> TaskStream:
        """This stream, of a store that knows no generations any more: all tasks have the edges that are there now."""
        return self._of_these(graph, [replace(task, generation=None) for task in self])

    def without(self, graph: GraphStore, nodes: Any = (), label: int | None = None) -> TaskStream:
        """This stream without some nodes, or without a class, as a model that has forgotten them knows it."""
        places = [place for place, known in enumerate(self.classes) if known == label]
        gone = Forgotten(np.unique(checked_ids(nodes, self.num_nodes)), np.array(places, np.int64))
        return self._of_these(graph, [task_without(task, gone, self.labels_of(task.node_ids)) for task in self])

    def _of_these(self, graph: GraphStore, tasks: Sequence[Task]) -> TaskStream:
        classes = self.classes[: num_outputs_after(self._tasks, len(tasks), self.num_classes)]
        positions = [self._head[task.node_ids] for task in tasks]
        settings, dropped = self.settings, self.dropped
        return TaskStream(graph, tasks, classes=classes, positions=positions, dropped=dropped, settings=settings)

    @property
    def seed(self) -> int:
        """The seed of the split."""
        return self.settings.seed

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
        """Width of a head that has all classes up to ``task``, forgotten ones too."""
        return num_outputs_after(self._tasks, self._index(task) + 1, self.num_classes)

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
        """Write tasks and split as one Parquet file; see ``stream_file``."""
        write_stream(Path(path), self)

    @classmethod
    def load(cls, path: str | Path, graph: GraphStore, *, may_have_grown: bool = False) -> TaskStream:
        """Read what ``save`` wrote, for the same store, or for one that has grown from it.

        Raises
        ------
        InvalidInputError
            The file is damaged, or its nodes are not those of ``graph`` or have other labels there.
        """
        parts = read_stream(Path(path), graph, may_have_grown=may_have_grown)
        return cls(
            graph,
            parts.tasks,
            classes=parts.classes,
            positions=parts.positions,
            dropped=parts.dropped,
            settings=parts.settings,
        )
