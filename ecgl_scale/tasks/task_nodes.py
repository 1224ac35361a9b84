"""A task, and how the nodes of the tasks are found: classes counted, ids collected in one pass, parts checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import EventSink, Note
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL, SPLIT
from ecgl_scale.tasks.members import Members
from ecgl_scale.tasks.split import (
    PARTS,
    TEST,
    TRAIN,
    VALID,
    Ids,
    Parts,
    checked_fractions,
    missing_column,
    read_column,
    split_seeded,
)

if TYPE_CHECKING:
    from ecgl_scale.tasks.stream import TaskStream


SHOWN_CLASSES = 20


@dataclass(frozen=True, eq=False)
class Task:
    """One step of the stream. Ids are global and ascending."""

    index: int
    name: str
    classes: tuple[int, ...]
    """Label ids, ascending."""
    positions: Ids
    """Their head positions."""
    members: Members
    """All labelled nodes of the task, those in no part of the split too."""
    parts: Parts
    """The part of each of them: 0, 1, 2 as in a store's split column, -1 for none."""
    generation: int | None = None
    """The generation of the store whose edges are those of the task; None: the one that is open."""
    stream: TaskStream | None = field(default=None, repr=False, compare=False)
    """The stream it is a step of, which knows the head positions of all classes."""

    @property
    def node_ids(self) -> Ids:
        """All labelled nodes of the task, those in no part of the split too. Memory: 8 bytes each, at every call."""
        return self.members.ids

    @property
    def train_ids(self) -> Ids:
        """Nodes to train on; memory as ``node_ids``."""
        return self._ids_in(TRAIN)

    @property
    def valid_ids(self) -> Ids:
        """Nodes to validate on; memory as ``node_ids``."""
        return self._ids_in(VALID)

    @property
    def test_ids(self) -> Ids:
        """Nodes to test on; memory as ``node_ids``."""
        return self._ids_in(TEST)

    def _ids_in(self, part: int) -> Ids:
        ids: Ids = self.node_ids[self.parts == part]
        return ids

    @property
    def num_nodes(self) -> int:
        """How many nodes it has."""
        return self.members.size

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """How many of them are to train, to validate and to test on."""
        train, valid, test = (int(np.count_nonzero(self.parts == part)) for part in (TRAIN, VALID, TEST))
        return train, valid, test

    @property
    def num_train(self) -> int:
        """How many nodes there are to train on."""
        return self.counts[TRAIN]

    @property
    def num_valid(self) -> int:
        """How many nodes there are to validate on."""
        return self.counts[VALID]

    @property
    def num_test(self) -> int:
        """How many nodes there are to test on."""
        return self.counts[TEST]

    def num_in(self, part: str) -> int:
        """How many nodes are in ``train``, ``valid`` or ``test``."""
        return self.counts[PARTS.index(part)]

    def part_ids(self, part: str) -> Ids:
        """Nodes of ``train``, ``valid`` or ``test``."""
        if part not in PARTS:
            raise UsageError(f"there is no part {part!r}", expected="train, valid or test")
        return (self.train_ids, self.valid_ids, self.test_ids)[PARTS.index(part)]


@dataclass(frozen=True)
class DroppedClass:
    """A class that is in no task."""

    label: int
    num_nodes: int
    reason: str


@dataclass(frozen=True)
class SplitSettings:
    """How nodes are split, checked; tasks that are added later go by the same."""

    seed: int = 0
    split: str = "seeded"
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    is_by_time: bool = False
    """Whether classes return: then a class is split anew in each task."""
    min_class_nodes: int = 2
    column: str | None = None
    """The node column by which tasks come, where there is one."""

    @classmethod
    def checked(
        cls,
        graph: GraphStore,
        seed: int = 0,
        split: str = "seeded",
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        min_class_nodes: int = 2,
        is_by_time: bool = False,
        column: str | None = None,
    ) -> SplitSettings:
        """Refuse what makes no sense, and columns that are not there."""
        if seed < 0:
            raise UsageError(f"the seed is {seed}", expected="at least 0")
        if min_class_nodes < 1:
            raise UsageError(f"min_class_nodes is {min_class_nodes}", expected="at least 1")
        if split not in ("seeded", "store"):
            raise UsageError(f"the split is {split!r}", expected="seeded, or store for the store's own column")
        if graph.nodes is None or LABEL not in graph.nodes.names:
            raise missing_column(graph, LABEL)
        if split == "store" and SPLIT not in graph.nodes.names:
            raise missing_column(graph, SPLIT)
        return cls(seed, split, checked_fractions(fractions), is_by_time, min_class_nodes, column)


def label_blocks(graph: GraphStore) -> Iterator[tuple[int, NDArray[Any]]]:
    """First row and labels of each batch of the label column."""
    if graph.nodes is None:
        raise missing_column(graph, LABEL)
    return graph.nodes.blocks(LABEL)


def count_labels(graph: GraphStore) -> Ids:
    """Labelled nodes by label id."""
    counts = np.zeros(0, np.int64)
    for _, labels in label_blocks(graph):
        more = np.bincount(labels[labels >= 0], minlength=counts.size)
        more[: counts.size] += counts
        counts = more
    if not counts.size:
        raise InvalidInputError("no node has a label", where=graph.path)
    return counts


def checked_order(class_order: Sequence[int | str] | None, counts: Ids, graph: GraphStore) -> list[int]:
    """The classes in the order in which they come; labels there are none of, or twice, are refused.

    Where classes have names, the order is one of names, be they numbers (1, 2, 6) or words.
    """
    present = np.flatnonzero(counts).tolist()
    if class_order is None:
        return present
    number_of = {graph.class_name(label): label for label in present}
    unknown = [name for name in class_order if str(name) not in number_of]
    if unknown:
        shown = ", ".join([*number_of][:SHOWN_CLASSES]) + (", ..." if len(number_of) > SHOWN_CLASSES else "")
        expected = f"labels up to {present[-1]}" if graph.class_names is None else f"classes: {shown}"
        raise UsageError(f"no node has label {unknown[0]} of the class order", expected=expected)
    order = [number_of[str(name)] for name in class_order]
    if len(set(order)) != len(order):
        repeated = next(name for name in class_order if [*map(str, class_order)].count(str(name)) > 1)
        raise UsageError(f"label {repeated} is in the class order more than once")
    return order


def class_blocks(
    graph: GraphStore, classes_per_task: int, class_order: Sequence[int | str] | None, min_class_nodes: int
) -> tuple[list[list[int]], list[DroppedClass], int]:
    """The classes of each task, those that are in none, and the number of label ids there are."""
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
    return blocks, dropped, counts.size


def too_small(labels: Sequence[int], counts: Ids, min_class_nodes: int) -> list[DroppedClass]:
    """Classes with too few nodes to learn and to score."""
    reason = f"fewer than {min_class_nodes} labelled nodes"
    small = [label for label in labels if counts[label] < min_class_nodes]
    return [DroppedClass(label, int(counts[label]), reason) for label in small]


def collect_ids(graph: GraphStore, num_tasks: int, tasks_of: Callable[[int, NDArray[Any]], Ids]) -> list[Ids]:
    """Ascending ids of every task's nodes, in one pass."""
    parts: list[list[Ids]] = [[] for _ in range(num_tasks)]
    for start, labels in label_blocks(graph):
        tasks = np.where(labels >= 0, tasks_of(start, labels), -1)
        order = np.argsort(tasks, kind="stable")
        cuts = np.searchsorted(tasks[order], np.arange(num_tasks + 1))
        for index in range(num_tasks):
            if cuts[index] < cuts[index + 1]:
                parts[index].append(order[cuts[index] : cuts[index + 1]] + start)
    return [np.concatenate(of_task) for of_task in parts]


def split_task(
    graph: GraphStore,
    known: Sequence[int],
    named: tuple[int, str],
    ids: Ids,
    settings: SplitSettings,
    on_event: EventSink,
) -> tuple[Task, NDArray[Any], tuple[int, ...]]:
    """The task of this index and name, the labels of its nodes, and all classes after it, ``known`` before it."""
    index, name = named
    labels = read_column(graph, LABEL, ids)
    if settings.split == "seeded":
        period = index if settings.is_by_time else None
        parts: Parts = split_seeded(labels, settings.fractions, seed=settings.seed, period=period)
    else:
        parts = np.asarray(read_column(graph, SPLIT, ids), np.int8)
    of_task = np.unique(labels).tolist()
    classes = (*known, *sorted(set(of_task) - set(known)))
    task = make_task(index, name, of_task, classes, ids, parts, generation=graph.generation)
    check_parts(graph, task, labels, parts, on_event)
    return task, labels, classes


def at_generation(graph: GraphStore, generation: int | None) -> GraphStore:
    """The store as it was at a generation; itself where that is the one that is open."""
    if generation is None or generation == graph.generation:
        return graph
    return GraphStore.open(graph.path, generation=generation)


def make_task(
    index: int,
    name: str,
    classes: Sequence[int],
    all_classes: Sequence[int],
    ids: Ids,
    parts: Parts,
    *,
    generation: int | None = None,
) -> Task:
    """A task of the nodes ``ids``, each in its part; ``all_classes`` are those of the head, in order of position."""
    place = {label: position for position, label in enumerate(all_classes)}
    positions = np.array([place[label] for label in classes], np.int64)
    return Task(index, name, tuple(classes), positions, Members.of(ids), parts, generation)


def check_parts(graph: GraphStore, task: Task, labels: NDArray[Any], parts: Parts, on_event: EventSink) -> None:
    """A task needs nodes to train on; what else it lacks is said."""
    if not task.num_train:
        raise InvalidInputError(f"task {task.index} ({task.name}) has no node to train on", where=graph.path)
    for part, count in (("valid", task.num_valid), ("test", task.num_test)):
        if not count:
            on_event(Note(f"task {task.index} ({task.name}) has no {part} node", is_warning=True))
    untrained = np.setdiff1d(labels, labels[parts == TRAIN]).tolist()
    if untrained:
        text = f"task {task.index} ({task.name}) has no train node of the classes {untrained}"
        on_event(Note(text, is_warning=True))
