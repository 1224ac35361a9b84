"""Where training rows come from: an array, sparse rows in memory, the store's own sparse files, or a file of ours.

A file of ours is raw float32, row after row, with a JSON file beside it that says whose rows they are and their crc32c;
that one is written last, so rows without it, or with another's, are not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import DurableWriter, atomic_file, crc32c_of, storage_errors, write_atomically
from ecgl_scale.errors import StorageError, UsageError
from ecgl_scale.store.checked import read_exactly
from ecgl_scale.store.features.csr import take_csr, to_dense
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import MIB

FORMAT_VERSION = 1
PIECE_BYTES = 16 * MIB
"""Rows gathered at once, on their way to memory or disk."""
CHECK_BYTES = 4 * MIB
ID_BYTES = 32
"""What a gather needs for each id of a piece."""

Features = FeatureStore | NDArray[Any]
Dense = NDArray[np.float32]
Positions = NDArray[np.int64]


class Source(Protocol):
    """Rows by number; ``read`` fills ``out`` where it cannot give a view."""

    @property
    def held_bytes(self) -> int:
        """Memory the rows take."""
        ...

    def read(self, start: int, stop: int, out: Dense | None) -> Dense:
        """Rows ``start`` up to ``stop``, dense."""
        ...

    def read_sparse(self, start: int, stop: int) -> CsrBlock:
        """Rows ``start`` up to ``stop`` as CSR, whose offsets may start past 0."""
        ...

    def take(self, positions: Positions) -> Dense:
        """The rows at ``positions``, dense."""
        ...

    def take_sparse(self, positions: Positions) -> CsrBlock:
        """The rows at ``positions`` as CSR."""
        ...


class _DenseOnly:
    def read_sparse(self, start: int, stop: int) -> CsrBlock:
        raise UsageError(f"rows {start} to {stop} are dense", expected="sparse rows")

    def take_sparse(self, positions: Positions) -> CsrBlock:
        raise UsageError(f"these {positions.size} rows are dense", expected="sparse rows")


@dataclass(frozen=True, eq=False)
class ArraySource(_DenseOnly):
    """float32 or float16 rows in memory."""

    array: NDArray[Any]

    @property
    def held_bytes(self) -> int:
        """The bytes of the array."""
        return self.array.nbytes

    def read(self, start: int, stop: int, out: Dense | None) -> Dense:
        """A view of float32 rows; others are converted."""
        rows = self.array[start:stop]
        if rows.dtype == np.float32:
            return rows
        if out is None:
            return rows.astype(np.float32)
        np.copyto(out, rows)
        return out

    def take(self, positions: Positions) -> Dense:
        """A copy of the rows as float32."""
        return self.array[positions].astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class CsrSource:
    """Sparse rows in memory."""

    rows: CsrBlock
    num_features: int

    @property
    def held_bytes(self) -> int:
        """The bytes of offsets, columns and values."""
        return self.rows.num_bytes

    def read(self, start: int, stop: int, out: Dense | None) -> Dense:
        """The rows with their zeros."""
        return to_dense(self.read_sparse(start, stop), self.num_features, out)

    def read_sparse(self, start: int, stop: int) -> CsrBlock:
        """Views of the rows held."""
        return CsrBlock(self.rows.indptr[start : stop + 1], self.rows.indices, self.rows.values)

    def take(self, positions: Positions) -> Dense:
        """The rows with their zeros."""
        return to_dense(self.take_sparse(positions), self.num_features)

    def take_sparse(self, positions: Positions) -> CsrBlock:
        """A copy of the rows."""
        return take_csr(self.rows, positions)


@dataclass(frozen=True, eq=False)
class StoredSource:
    """Sparse rows that stay in the store: its files are mapped, so a block costs a gather and no reading of ours."""

    features: FeatureStore
    ids: Positions

    @property
    def held_bytes(self) -> int:
        """The bytes of the ids; the rows are the store's."""
        return self.ids.nbytes

    def read(self, start: int, stop: int, out: Dense | None) -> Dense:
        """The rows with their zeros."""
        return to_dense(self.read_sparse(start, stop), self.features.num_features, out)

    def read_sparse(self, start: int, stop: int) -> CsrBlock:
        """A copy of the rows."""
        return self.features.rows_csr(self.ids[start:stop])

    def take(self, positions: Positions) -> Dense:
        """The rows with their zeros."""
        return self.features.rows_dense(self.ids[positions])

    def take_sparse(self, positions: Positions) -> CsrBlock:
        """A copy of the rows."""
        return self.features.rows_csr(self.ids[positions])


@dataclass(frozen=True, eq=False)
class FileSource(_DenseOnly):
    """A file of float32 rows, whose bytes were checked or written by this process."""

    path: Path
    num_rows: int
    num_features: int

    @classmethod
    def find(cls, path: Path, about: Mapping[str, Any]) -> FileSource | None:
        """Rows that an earlier run wrote, if they are these rows and every byte is as it was."""
        try:
            found = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            crc = found.pop("crc32c")
            if found != {"version": FORMAT_VERSION, **about} or crc != _crc_of_file(path):
                return None
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        return cls(path, *about["shape"])

    @classmethod
    def write(cls, path: Path, about: Mapping[str, Any], pieces: Iterator[NDArray[Any]]) -> FileSource:
        """Write all rows, durably; they count from the moment the JSON file is there."""
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        needed_bytes = 4 * about["shape"][0] * about["shape"][1]
        with atomic_file(path, needed_bytes=needed_bytes) as partial, DurableWriter(partial) as writer:
            for piece in pieces:
                writer.write(np.ascontiguousarray(piece, np.float32).reshape(-1))
            written = writer.finish()
        record = {"version": FORMAT_VERSION, **about, "crc32c": written.crc32c}
        write_atomically(path.with_suffix(".json"), json.dumps(record) + "\n")
        return cls(path, *about["shape"])

    @property
    def held_bytes(self) -> int:
        """Nothing: pages of the file are the kernel's."""
        return 0

    def read(self, start: int, stop: int, out: Dense | None) -> Dense:
        """Read the rows into ``out``, or into new memory."""
        if out is None:
            out = np.empty((stop - start, self.num_features), np.float32)
        with storage_errors(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                row_bytes = 4 * self.num_features
                whole = read_exactly(descriptor, [out.reshape(-1).view(np.uint8)], start * row_bytes)
            finally:
                os.close(descriptor)
        if not whole:
            raise StorageError(
                "a file of training rows became shorter",
                where=self.path,
                fix="run the same command again: the rows are gathered anew",
            )
        return out

    def take(self, positions: Positions) -> Dense:
        """Read the rows through a map, as they are far apart; its pages are the kernel's."""
        with storage_errors(self.path):
            mapped = np.memmap(self.path, np.float32, mode="r", shape=(self.num_rows, self.num_features))
        return np.asarray(mapped[positions])


def csr_bytes(num_rows: int, num_values: int) -> int:
    """Memory of sparse rows: int64 offsets, uint32 columns, float32 values."""
    return 8 * (num_rows + 1) + 8 * num_values


def stays_sparse(num_rows: int, num_features: int, num_values: int) -> bool:
    """Whether sparse rows are smaller than dense ones, and so stay as they are.

    It depends on the rows alone: blocks, and with them the last bits of a gradient, must not depend on the memory that
    a process happens to have.
    """
    return csr_bytes(num_rows, num_values) <= 4 * num_rows * num_features


def piece_rows(num_features: int) -> int:
    """Rows gathered at once."""
    return max(PIECE_BYTES // (4 * num_features), 1)


def gather_pieces(features: Features, ids: Positions, *, threads: int) -> Iterator[NDArray[Any]]:
    """Gather rows ``ids`` in their order, some MiB at a time."""
    step = piece_rows(features.shape[1] if isinstance(features, np.ndarray) else features.num_features)
    for start in range(0, ids.size, step):
        wanted = ids[start : start + step]
        yield features[wanted] if isinstance(features, np.ndarray) else features.rows_dense(wanted, threads=threads)


def _crc_of_file(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(CHECK_BYTES):
            crc = crc32c_of(piece, crc)
    return crc
