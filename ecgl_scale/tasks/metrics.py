"""Accuracy of predictions, and the performance matrix of a stream of tasks. All numbers are in percent.

    M[t, j]     accuracy on task j after learning task t, j <= t
    AA(t)       mean of M[t, j] over j <= t                   average accuracy; AA is that of the last task
    AF(t)       mean of M[t, j] - M[j, j] over j < t          average forgetting: below 0 where something was lost

A task without nodes to score has NaN, and means leave it out.
Memory: 8 bytes a pair of tasks; 24 a scored node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import UsageError

_CELL = 7


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of one set of nodes, in percent; NaN where there are none."""

    macro: float
    """Mean over the classes that have nodes of the share of their nodes predicted right."""
    micro: float
    """Share of all nodes predicted right."""


def accuracy(predicted: Any, labels: Any, *, positions: Any) -> Accuracy:
    """How much of ``labels`` was predicted.

    Parameters
    ----------
    predicted, labels
        Head positions, one a node.
    positions
        Head positions of the classes the nodes are of. Classes without nodes do not count; a prediction outside them
        is just wrong.

    Raises
    ------
    UsageError
        Arrays that do not fit each other, or a label that is not one of ``positions``.
    """
    found, wanted = _checked_positions(predicted, "predicted"), _checked_positions(labels, "labels")
    if found.shape != wanted.shape:
        raise UsageError(f"{found.size:,} predictions for {wanted.size:,} labels", expected="one for each")
    classes = np.unique(_checked_positions(positions, "positions"))
    outside = ~np.isin(wanted, classes)
    if outside.any():
        node = int(np.argmax(outside))
        raise UsageError(
            f"label {wanted[node]} is of none of the classes", where=f"labels[{node}]", expected=f"one of {classes}"
        )
    if not wanted.size:
        return Accuracy(math.nan, math.nan)
    numbers, right = np.searchsorted(classes, wanted), found == wanted
    counts = np.bincount(numbers, minlength=classes.size)
    hits = np.bincount(numbers[right], minlength=classes.size)
    present = counts > 0
    return Accuracy(
        macro=100.0 * math.fsum(hits[present] / counts[present]) / int(present.sum()),
        micro=100.0 * int(hits.sum()) / wanted.size,
    )


def _checked_positions(given: Any, name: str) -> NDArray[np.int64]:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(f"{name} are {array.dtype} of shape {array.shape}", expected="a list of head positions")
    return array.astype(np.int64, copy=False)


class PerformanceMatrix:
    """Accuracy in percent on each task (column) after learning each task (row); NaN where there is none (yet).

    Rows are set as the stream goes on, and whatever is asked "by default" is asked about the last row that is set.
    """

    def __init__(self, values: Any) -> None:
        array = np.array(values, np.float64, ndmin=2)
        if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
            raise UsageError(f"a performance matrix has shape {array.shape}", expected="[T, T], at least one task")
        if not np.isnan(array[np.triu_indices(len(array), 1)]).all():
            raise UsageError("a performance matrix has values above the diagonal", expected="NaN for tasks to come")
        _check_percent(array)
        self._values = array

    @classmethod
    def empty(cls, num_tasks: int) -> PerformanceMatrix:
        """The matrix of a stream that has not begun."""
        if num_tasks < 1:
            raise UsageError(f"{num_tasks} tasks", expected="at least one")
        return cls(np.full((num_tasks, num_tasks), np.nan))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[float | None]]) -> PerformanceMatrix:
        """Make the matrix of what ``to_lists`` gave."""
        if any(len(row) != len(rows) for row in rows):
            raise UsageError(f"a matrix of {len(rows)} rows is not square", expected="T rows of T values")
        return cls([[math.nan if value is None else float(value) for value in row] for row in rows])

    @property
    def values(self) -> NDArray[np.float64]:
        """All accuracies as a copy, [T, T]."""
        return self._values.copy()

    @property
    def num_tasks(self) -> int:
        """Number of tasks, T."""
        return len(self._values)

    @property
    def num_finished(self) -> int:
        """Rows up to the last one that is set."""
        is_set = ~np.isnan(self._values).all(axis=1)
        return int(np.flatnonzero(is_set)[-1]) + 1 if is_set.any() else 0

    def set_row(self, task: int, accuracies: Sequence[float]) -> None:
        """Enter the accuracies on tasks 0 to ``task``, in percent, after learning ``task``."""
        if not 0 <= task < self.num_tasks:
            raise UsageError(f"there is no task {task}", expected=f"0 <= task < {self.num_tasks}")
        row = np.array(accuracies, np.float64)
        if row.shape != (task + 1,):
            raise UsageError(
                f"{row.size} accuracies after task {task}", expected=f"{task + 1}, one for each task up to it"
            )
        _check_percent(row)
        self._values[task, : task + 1] = row

    def average_accuracy(self, task: int | None = None) -> float:
        """AA after ``task`` (the last that is set without one) = mean of M[task, j] over j <= task; NaN without any."""
        row = self._row(task)
        return _mean([] if row is None else self._values[row, : row + 1])

    def average_forgetting(self, task: int | None = None) -> float:
        """AF after ``task`` = mean of M[task, j] - M[j, j] over j < task; NaN for the first task."""
        row = self._row(task)
        return _mean([] if row is None else self._values[row, :row] - np.diagonal(self._values)[:row])

    def average_accuracies(self) -> list[float]:
        """AA after every task that is finished."""
        return [self.average_accuracy(task) for task in range(self.num_finished)]

    def average_forgettings(self) -> list[float]:
        """AF after every task that is finished; NaN for the first."""
        return [self.average_forgetting(task) for task in range(self.num_finished)]

    def _row(self, task: int | None) -> int | None:
        if task is None:
            return self.num_finished - 1 if self.num_finished else None
        if not 0 <= task < self.num_tasks:
            raise UsageError(f"there is no task {task}", expected=f"0 <= task < {self.num_tasks}")
        return task

    def to_lists(self) -> list[list[float | None]]:
        """Rows for JSON, which has no NaN: None above the diagonal, and where there is no value."""
        return [[None if math.isnan(value) else value for value in row] for row in self._values.tolist()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PerformanceMatrix):
            return NotImplemented
        return bool(np.array_equal(self._values, other._values, equal_nan=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PerformanceMatrix({self.to_lists()})"

    def __str__(self) -> str:
        """A row a finished task: accuracy on each task so far, AA and AF. Tasks are counted from 0."""
        width = max(len("after task"), len(str(self.num_tasks)))
        heads = [*(f"{j:>{_CELL}}" for j in range(self.num_tasks)), f" | {'AA':>{_CELL}}{'AF':>{_CELL}}"]
        lines = ["after task".rjust(width) + "".join(heads)]
        for task in range(self.num_finished):
            cells = "".join(_cell(value) for value in self._values[task])
            means = _cell(self.average_accuracy(task)) + _cell(self.average_forgetting(task))
            lines.append(f"{task:>{width}}{cells} | {means}".rstrip())
        return "\n".join(lines)


def _cell(value: float) -> str:
    return " " * _CELL if math.isnan(value) else f"{value:>{_CELL}.1f}"


def _mean(values: Any) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _check_percent(values: NDArray[np.float64]) -> None:
    wrong = (values < 0) | (values > 100) | np.isinf(values)
    if wrong.any():
        raise UsageError(f"{values[wrong][0]} is no accuracy", expected="percent, from 0 to 100")
