"""The dense work between two aggregations, a chunk of rows at a time.

In a library's product a row's last bits depend on how many rows there are and on its place among them. So products
always have ``CHUNK_ROWS`` rows and one thread, and a row of a contiguous partition always has the same place: its
number modulo ``CHUNK_ROWS``. Rows of other partitions are packed; their last bits may change with the partitioning.
Rows of some nodes are packed so that each keeps its place: a chunk has rows from anywhere, no two with the same place.
Memory: the chunks of one thread are ``4 * CHUNK_ROWS * (source width + widths after each product)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.graph.adjacency import Ints, Scale
from ecgl_scale.graph.partition import CHUNK_ROWS, Where
from ecgl_scale.infer.program import Dense, Pass
from ecgl_scale.infer.settings import Matrix


@dataclass(frozen=True, eq=False)
class Target:
    """Where the finished rows of a block go."""

    matrix: Matrix
    """It has a row for every node, or for every row of the block."""
    where: Where
    """The block's rows in it."""
    scale: Scale
    """What each row of the block is multiplied by on the way, as the next aggregation wants it; None for ones."""

    @property
    def rows(self) -> Matrix:
        """The block's rows themselves, where they are a run."""
        return self.matrix[self.where]

    def write(self, start: int, stop: int, rows: Matrix) -> None:
        """Put the block's rows ``start`` up to ``stop`` in their places; columns beyond theirs stay zero."""
        where = self.where
        places = slice(where.start + start, where.start + stop) if isinstance(where, slice) else where[start:stop]
        scaled = rows if self.scale is None else rows * self.scale[start:stop, None]
        self.matrix[places, : rows.shape[1]] = scaled


class ChunkBuffers:
    """Buffers of one thread for one pass, over sources that may have a few more columns than count."""

    def __init__(self, layer_pass: Pass, source_width: int) -> None:
        self._pass = layer_pass
        self.first = _make_chunk(source_width)
        weights = [step.weight_t for step in layer_pass.dense]
        self._rest = [None if weight_t is None else _make_chunk(weight_t.shape[1]) for weight_t in weights]

    def finish_scattered(self, places: Ints, sums: Matrix | None) -> Matrix:
        """As ``finish``, of rows that are no run; whatever else is in the chunk is worked on too, and not looked at."""
        spread = None
        if sums is not None:
            spread = np.zeros(CHUNK_ROWS, np.float32)
            spread[places] = sums
        return self.finish(slice(0, CHUNK_ROWS), spread)[places]

    def finish(self, rows: slice, sums: Matrix | None) -> Matrix:
        """Apply the dense steps to the aggregated ``rows`` of ``first``; returns as many rows."""
        found = self.first[:, : self._pass.width]
        for step, buffer in zip(self._pass.dense, self._rest, strict=True):
            if step.weight_t is not None and buffer is not None:
                found = np.matmul(found, step.weight_t, out=buffer)
            _apply_rest(step, found[rows], sums)
        return found[rows]


def _make_chunk(width: int) -> Matrix:
    """A chunk of zeros, page-aligned: some libraries sum in an order that depends on addresses."""
    return aligned_bytes(CHUNK_ROWS * width * 4).view(np.float32).reshape(CHUNK_ROWS, width)


def _apply_rest(step: Dense, rows: Matrix, sums: Matrix | None) -> None:
    """Bias and relu, in place."""
    if step.bias is not None:
        rows += sums[:, None] * step.bias if step.bias_times_sums and sums is not None else step.bias
    if step.relu:
        np.maximum(rows, 0.0, out=rows)


def cut_chunks(first_row: int, num_rows: int) -> list[tuple[int, int]]:
    """Positions among ``num_rows`` rows, cut where the number of the row is a multiple of ``CHUNK_ROWS``."""
    stop = first_row + num_rows
    cuts = [first_row, *range(first_row // CHUNK_ROWS * CHUNK_ROWS + CHUNK_ROWS, stop, CHUNK_ROWS), stop]
    return [(a - first_row, b - first_row) for a, b in pairwise(cuts)]


def places_of(first_row: int, start: int, stop: int) -> slice:
    """Where positions ``start`` up to ``stop``, all of one chunk, are put in the chunk's buffers."""
    first = (first_row + start) % CHUNK_ROWS
    return slice(first, first + stop - start)


@dataclass(frozen=True, eq=False)
class PackedChunk:
    """Positions ``start`` up to ``stop`` among rows that were packed, and the place of each in its chunk."""

    start: int
    stop: int
    places: Ints


def pack_by_place(places: Ints) -> Ints:
    """An order of rows in which chunks with ascending places follow each other, as few as there can be."""
    by_place = np.argsort(places, kind="stable")
    sorted_places = places[by_place]
    turn = np.empty(places.size, np.int64)
    turn[by_place] = np.arange(places.size) - np.searchsorted(sorted_places, sorted_places)
    return np.lexsort((places, turn))


def cut_packed(places: Ints) -> list[PackedChunk]:
    """Runs of ascending places: a chunk each."""
    inner = np.flatnonzero(places[1:] <= places[:-1]) + 1
    cuts = [0, *inner.tolist(), places.size] if places.size else []
    return [PackedChunk(start, stop, places[start:stop]) for start, stop in pairwise(cuts)]


class BufferPool:
    """Hands every thread buffers that nobody else uses meanwhile."""

    def __init__(self, layer_pass: Pass, source_width: int, threads: int) -> None:
        self._free: SimpleQueue[ChunkBuffers] = SimpleQueue()
        for _ in range(threads):
            self._free.put(ChunkBuffers(layer_pass, source_width))

    @contextmanager
    def buffers(self) -> Iterator[ChunkBuffers]:
        """Some that are free, until the end of the block."""
        taken = self._free.get()
        try:
            yield taken
        finally:
            self._free.put(taken)
