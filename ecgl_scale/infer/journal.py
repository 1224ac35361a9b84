"""Finished partitions on disk, so that a killed inference goes on where it was.

``journal.json`` says which step was under way and which of its partitions are finished, with a crc32c of their rows;
the rows are in ``matrix-<step>.rows``. It is replaced atomically after the rows are in their file. Rows are not
fsynced: a killed process loses nothing, and after a power cut the checksums tell what is missing. Partitions that take
less than ``SAVE_EVERY_SECONDS`` are saved together, so that an inference shorter than that writes nothing.
Memory: a partition's rows where partitions are not runs of rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.durable import crc32c_of, storage_errors, write_atomically
from ecgl_scale.infer.layout import Layout
from ecgl_scale.infer.matrix import make_matrix, map_matrix
from ecgl_scale.infer.partition import Partition
from ecgl_scale.infer.settings import Matrix

SAVE_EVERY_SECONDS = 1.0
NAME = "journal.json"
VERSION = 1


@dataclass(frozen=True)
class Finished:
    """What an earlier call left."""

    layout: Layout
    step: int
    """The one that was under way."""
    crcs: dict[int, dict[int, int]]
    """Of the finished partitions of that step and of those it reads."""


@dataclass
class _Kept:
    """A matrix that is being written or will still be read."""

    matrix: Matrix
    partitions: list[Partition]
    crcs: dict[int, int]
    """Of partitions whose rows are in the file."""
    unsaved: list[Partition] = field(default_factory=list)


class InferJournal:
    """Keeps finished partitions in ``directory``; ``identity`` says what they belong to."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        self._directory = directory
        self._identity = json.loads(json.dumps(identity))
        self._saved_at = time.monotonic()
        self._kept: dict[int, _Kept] = {}
        self._step = -1

    def path_of(self, step: int) -> Path:
        """The file of the matrix that a step writes."""
        return self._directory / f"matrix-{step}.rows"

    def load(self) -> Finished | None:
        """Where an earlier call of this very inference was; None where there was none, or its note is damaged."""
        try:
            entry = json.loads((self._directory / NAME).read_text(encoding="utf-8"))
            if entry.pop("check") != _check_of(entry) or entry["version"] != VERSION:
                return None
            if entry["identity"] != self._identity:
                return None
            crcs = {
                int(step): {int(index): int(crc) for index, crc in found.items()}
                for step, found in entry["crcs"].items()
            }
            return Finished(Layout.from_json(entry["layout"]), int(entry["step"]), crcs)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def restore(self, step: int, matrix: Matrix, partitions: list[Partition], crcs: dict[int, int]) -> dict[int, int]:
        """Bring a step's saved rows into ``matrix``; returns the crcs of those that are as they were written."""
        try:
            stored = map_matrix(len(matrix), matrix.shape[1], self.path_of(step))
        except (OSError, ValueError):
            return {}
        whole: dict[int, int] = {}
        for partition in partitions:
            if partition.index in crcs and _crc(stored, partition) == crcs[partition.index]:
                whole[partition.index] = crcs[partition.index]
                if not isinstance(matrix, np.memmap):
                    matrix[partition.where] = stored[partition.where]
        return whole

    def begin(self, step: int, matrix: Matrix, partitions: list[Partition], saved: dict[int, int]) -> None:
        """A step starts, or goes on after those partitions that are ``saved``."""
        self._step = step
        self._kept[step] = _Kept(matrix, partitions, dict(saved))

    def finish(self, partition: Partition, layout: Layout) -> None:
        """Note a finished partition of the step, and write what is finished where enough time has passed."""
        self._kept[self._step].unsaved.append(partition)
        if time.monotonic() - self._saved_at >= SAVE_EVERY_SECONDS:
            self.save(layout)
            self._saved_at = time.monotonic()

    def drop(self, step: int) -> None:
        """Nobody will read this step's matrix any more."""
        self._kept.pop(step, None)

    def save(self, layout: Layout) -> None:
        """Write all rows that are finished, then the note, then remove files that no note names."""
        for step, kept in self._kept.items():
            self._write(step, kept)
        entry = {
            "version": VERSION,
            "identity": self._identity,
            "layout": layout.to_json(),
            "step": self._step,
            "crcs": {step: kept.crcs for step, kept in self._kept.items()},
        }
        entry = json.loads(json.dumps(entry))
        write_atomically(self._directory / NAME, json.dumps(entry | {"check": _check_of(entry)}) + "\n")
        self._remove_files(set(self._kept))

    def _write(self, step: int, kept: _Kept) -> None:
        matrix, path = kept.matrix, self.path_of(step)
        if not kept.unsaved:
            return
        stored = matrix
        if not isinstance(matrix, np.memmap):
            try:
                stored = map_matrix(len(matrix), matrix.shape[1], path)
            except (OSError, ValueError):
                stored = make_matrix(len(matrix), matrix.shape[1], path)
        for partition in kept.unsaved:
            if stored is not matrix:
                stored[partition.where] = matrix[partition.where]
            kept.crcs[partition.index] = _crc(matrix, partition)
        kept.unsaved = []

    def clear(self, *, keep_step: int = -1) -> None:
        """The inference is done, or begins anew. ``keep_step``'s rows stay, as they are the result."""
        with storage_errors(self._directory):
            (self._directory / NAME).unlink(missing_ok=True)
        self._remove_files({keep_step})

    def _remove_files(self, steps: set[int]) -> None:
        keep = {self.path_of(step) for step in steps}
        with storage_errors(self._directory):
            for path in self._directory.glob("matrix-*.rows"):
                if path not in keep:
                    path.unlink(missing_ok=True)


def _crc(matrix: Matrix, partition: Partition) -> int:
    return crc32c_of(np.ascontiguousarray(matrix[partition.where]))


def _check_of(entry: dict[str, Any]) -> int:
    return crc32c_of(json.dumps(entry, sort_keys=True).encode())
