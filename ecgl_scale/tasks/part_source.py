"""A task's edges and rows from the files of one pass over the store, as sources for the build of its graph."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import crc32c_of, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource
from ecgl_scale.store.features.csr import join_csr, to_dense
from ecgl_scale.store.row_source import RowSource
from ecgl_scale.store.source import AnyArray, CsrBlock, SparseSource
from ecgl_scale.tasks.parting import LABELS_NAME, Parts, edges_name, rows_name
from ecgl_scale.tasks.scaling import Scaling


@dataclass(frozen=True, eq=False)
class TaskPart:
    """One task's edges, rows and labels in the files of a pass."""

    parts: Parts
    index: int

    @cached_property
    def edge_ends(self) -> list[int]:
        """The task's edges up to each piece, 0 first."""
        return [0, *accumulate(piece.counts[self.index] for piece in self.parts.edges)]

    @property
    def num_edges(self) -> int:
        """Edges among the task's nodes, as they are stored."""
        return self.edge_ends[-1]

    def read_edges(self, piece: int, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Sources and targets ``start`` up to ``stop`` of the task's edges in a piece; checked where it is all."""
        record, dtype = self.parts.edges[piece], np.dtype(self.parts.id_dtype)
        path = self.parts.directory / edges_name(piece)
        before, count = sum(record.counts[: self.index]) * self.parts.edge_bytes, record.counts[self.index]
        with storage_errors(path), path.open("rb") as file:
            found = []
            for array in range(2):
                file.seek(before + (array * count + start) * dtype.itemsize)
                found.append(np.fromfile(file, dtype, stop - start))
        if start == 0 and stop == count and crc32c_of(found[1], crc32c_of(found[0])) != record.crcs[self.index]:
            raise CorruptStoreError("edges of a task are not as they were written", where=path)
        return found[0], found[1]

    @cached_property
    def _row_ends(self) -> list[int]:
        return [0, *accumulate(piece.counts[self.index] for piece in self.parts.rows)]

    def read_rows(self, start: int, stop: int, num_features: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Rows of the task, ``start`` up to ``stop``, with their zeros."""
        if self.are_sparse:
            return to_dense(self.read_csr(start, stop), num_features)
        found, at = np.empty((min(stop, self._row_ends[-1]) - start, num_features), dtype), 0
        row_bytes = num_features * dtype.itemsize
        for piece, first, here in self._pieces_of(start, stop):
            before = sum(self.parts.rows[piece].counts[: self.index]) + first
            with self._opened(piece) as file:
                file.seek(before * row_bytes)
                found[at : at + here] = np.fromfile(file, dtype, here * num_features).reshape(here, num_features)
            at += here
        return found

    @property
    def are_sparse(self) -> bool:
        """Whether rows are without their zeros."""
        return any(piece.num_values is not None for piece in self.parts.rows)

    def read_csr(self, start: int, stop: int) -> CsrBlock:
        """Sparse rows of the task, ``start`` up to ``stop``."""
        found = [CsrBlock(np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.float32))]
        for piece, first, here in self._pieces_of(start, stop):
            record = self.parts.rows[piece]
            num_values = record.num_values or [0] * len(record.counts)
            num_rows, total, before = sum(record.counts), sum(num_values), sum(record.counts[: self.index])
            with self._opened(piece) as file:
                file.seek(8 * before)
                lengths = np.fromfile(file, np.int64, first + here)
                at = sum(num_values[: self.index]) + int(lengths[:first].sum())
                indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[first:])])
                arrays = []
                for number, dtype in enumerate((np.uint32, np.float32)):
                    file.seek(8 * num_rows + 4 * (number * total + at))
                    arrays.append(np.fromfile(file, dtype, int(indptr[-1])))
            found.append(CsrBlock(indptr, *arrays))
        return join_csr(found)

    def sparse_source(self, num_features: int, origin: str) -> SparseSource:
        """The sparse rows of the task, in order."""

        def blocks(max_rows: int) -> Iterator[CsrBlock]:
            for start in range(0, self._row_ends[-1], max_rows):
                yield self.read_csr(start, start + max_rows)

        num_values = sum(piece.num_values[self.index] for piece in self.parts.rows if piece.num_values is not None)
        return SparseSource(num_features, num_values, origin, blocks)

    def _pieces_of(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Which pieces hold these rows of the task: piece, first of the task's rows there, how many."""
        stop = min(stop, self._row_ends[-1])
        for piece in range(bisect_right(self._row_ends, start) - 1, len(self.parts.rows)):
            first, last = max(self._row_ends[piece], start), min(self._row_ends[piece + 1], stop)
            if first >= stop:
                return
            if last > first:
                yield piece, first - self._row_ends[piece], last - first

    @contextmanager
    def _opened(self, piece: int) -> Iterator[BinaryIO]:
        path = self.parts.directory / rows_name(piece)
        with storage_errors(path), path.open("rb") as file:
            yield file

    def labels(self, max_rows: int) -> Iterator[NDArray[Any]]:
        """The labels of the task's nodes, in order."""
        first, stop = self.parts.firsts[self.index : self.index + 2]
        with storage_errors(self.parts.directory):
            labels = np.load(self.parts.directory / LABELS_NAME, mmap_mode="r", allow_pickle=False)
        for start in range(first, stop, max_rows):
            yield np.array(labels[start : min(start + max_rows, stop)])


class PartEdges(EdgeSource):
    """Edges among the nodes of a task, with their numbers there."""

    kind = "task part"

    def __init__(self, part: TaskPart, identity: Json) -> None:
        self._part = part
        self._identity = identity

    def cut(self, max_edges: int) -> list[Block]:
        """Parts of what the pieces of the pass have left."""
        pieces: list[Block] = []
        ends = self._part.edge_ends
        for first, last in pairwise(ends):
            for start in range(first, last, max_edges):
                pieces.append(Block(len(pieces), start, min(start + max_edges, last)))
        return pieces

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Edges of one piece of the pass."""
        piece = bisect_right(self._part.edge_ends, start) - 1
        first = self._part.edge_ends[piece]
        src, dst = self._part.read_edges(piece, start - first, stop - first)
        return EdgeBlock(src, dst, str(self._part.parts.directory / edges_name(piece)), start - first)

    def identity(self) -> Json:
        """The nodes, and how the pass has cut the edges."""
        return {"nodes": self._identity, "ends": self._part.edge_ends}

    def describe(self, work: Path) -> Json:
        """Where the files are."""
        del work
        return {**describe_part(self._part), "nodes": self._identity}

    @classmethod
    def open(cls, description: Json) -> PartEdges:
        """Find the edges again."""
        return cls(open_part(description), description["nodes"])


class PartRows(RowSource):
    """Feature rows of a task's nodes, scaled."""

    kind = "task part"

    def __init__(self, part: TaskPart, shape: tuple[int, int], dtype: np.dtype[Any], scaling: Scaling) -> None:
        self._part = part
        self._num_rows, self._num_features = shape
        self._dtype = dtype
        self._scaling = scaling

    def read(self, start: int, stop: int) -> AnyArray:
        """Rows as the pass has left them, scaled."""
        rows = self._part.read_rows(start, stop, self._num_features, self._dtype)
        return rows if self._scaling.kind == "none" else self._scaling.apply(rows)

    def blocks(self, max_rows: int) -> Iterator[AnyArray]:
        """All rows in order."""
        for start in range(0, self._num_rows, max_rows):
            yield self.read(start, min(start + max_rows, self._num_rows))

    def identity(self) -> Json:
        """The numbers and the scaling; whose they are is said by the edges."""
        return {"rows": [self._num_rows, self._num_features], "scaling": self._scaling.to_json()}

    def describe(self, work: Path) -> Json:
        """Where the files are, and what the rows are."""
        del work
        about = {"shape": [self._num_rows, self._num_features], "dtype": self._dtype.name}
        return {**describe_part(self._part), **about, "scaling": self._scaling.to_json()}

    @classmethod
    def open(cls, description: Json) -> PartRows:
        """Find the rows again."""
        num_rows, num_features = description["shape"]
        scaling = Scaling.from_json(description["scaling"])
        return cls(open_part(description), (num_rows, num_features), np.dtype(description["dtype"]), scaling)


def describe_part(part: TaskPart) -> dict[str, Json]:
    """Where a task's files are."""
    return {"directory": str(part.parts.directory), "index": part.index}


def open_part(description: Json) -> TaskPart:
    """Find a task's files again."""
    return TaskPart(Parts.read(Path(description["directory"])), description["index"])
