"""The sums of the classes of a task as work on the engine: block i is the i-th class, its result a file.

A block reads the rows of its class, makes their features a chunk at a time, and adds them up with all threads of its
worker. Rows are in the order of their nodes and chunks have 1,024 of them, so the sums have the same bits whoever makes
them. What the class had before, of earlier tasks, is read from its file of then, and added to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.infer.input_rows import StackedRows, open_stacked
from ecgl_scale.infer.random_features import PRODUCT_ROWS
from ecgl_scale.learn.class_sums import ClassSums
from ecgl_scale.learn.tensors import load_tensors, save_tensors

PARTS = ("train", "valid")

Ids = NDArray[np.int64]
OnRows = Callable[[int], None]


@dataclass(frozen=True)
class ClassRows:
    """The rows of one class of a task, and the files of its sums."""

    train: Ids
    """Places of its training nodes among the task's."""
    valid: Ids
    before: str
    """The file with the sums of earlier tasks; empty where there is none."""
    after: str

    @property
    def num_rows(self) -> int:
        """Rows that are added up."""
        return int(self.train.size + self.valid.size)


@dataclass(frozen=True)
class Summed:
    """How many rows the sums of a class are of now."""

    train: int
    valid: int


class ClassSumsWork(Work[None, Summed]):
    """Adds up the rows of each class of a task."""

    name: ClassVar[str] = "learn.class_sums"
    record: ClassVar[type[Any]] = Summed
    uses_all_threads: ClassVar[bool] = True
    has_small_records: ClassVar[bool] = True

    def __init__(self, rows: StackedRows, classes: Sequence[ClassRows], listed: Path, resources: Resources) -> None:
        """``listed`` is a file that says of the classes what is said here, for other processes."""
        self._rows = rows
        self._classes = classes
        self._listed = listed
        self._threads = resources.threads
        self.on_rows: OnRows = lambda _: None

    def describe(self) -> Json:
        """Where rows are, and what is to be done with them."""
        arrays: dict[str, NDArray[Any]] = {}
        for index, one in enumerate(self._classes):
            arrays |= {f"{index}.train": one.train, f"{index}.valid": one.valid}
        save_tensors(self._listed, arrays, about={})
        files: list[Json] = [[one.before, one.after] for one in self._classes]
        return {"rows": self._rows.describe(), "listed": str(self._listed), "files": files}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> ClassSumsWork:
        """Open the rows and draw the random numbers again."""
        listed = Path(description["listed"])
        ids, _ = load_tensors(listed)
        classes = [
            ClassRows(ids[f"{index}.train"], ids[f"{index}.valid"], before, after)
            for index, (before, after) in enumerate(description["files"])
        ]
        return cls(open_stacked(description["rows"], resources), classes, listed, resources)

    def run(self, block: Block, given: Json, scratch: None) -> Summed:
        """Add the rows of one class to what it had, and write its file."""
        del given, scratch
        one = self._classes[block.index]
        before = load_tensors(Path(one.before))[0] if one.before else {}
        arrays: dict[str, NDArray[Any]] = {}
        counts = []
        for part, ids in zip(PARTS, (one.train, one.valid), strict=True):
            sums = ClassSums.of_arrays(before, part) if before else ClassSums.empty(self._rows.width)
            sums = sums.plus(self._chunks(ids), ids.size, threads=self._threads)
            arrays |= sums.arrays(part)
            counts.append(sums.count)
        save_tensors(Path(one.after), arrays, about={"kind": "class sums"})
        return Summed(*counts)

    def _chunks(self, ids: Ids) -> Iterator[NDArray[np.float32]]:
        for start in range(0, ids.size, PRODUCT_ROWS):
            here = ids[start : start + PRODUCT_ROWS]
            yield self._rows[here]
            self.on_rows(here.size)
