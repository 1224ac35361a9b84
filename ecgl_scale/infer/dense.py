"""The dense work between two aggregations, a chunk of rows at a time.

In a library's product a row's last bits depend on how many rows there are and on its place among them. So products
always have ``CHUNK_ROWS`` rows and one thread, and a row of a contiguous partition always has the same place: its
number modulo ``CHUNK_ROWS``. Rows of other partitions are packed; their last bits may change with the partitioning.
Memory: the chunks of one thread are ``4 * CHUNK_ROWS * (source width + widths after each product)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.infer.edges import Scale
from ecgl_scale.infer.partition import CHUNK_ROWS, Partition
from ecgl_scale.infer.program import Dense, Pass
from ecgl_scale.infer.settings import Matrix


class ChunkBuffers:
    """Buffers of one thread for one pass, over sources that may have a few more columns than count."""

    def __init__(self, one: Pass, source_width: int) -> None:
        self._pass = one
        self.first = make_chunk(source_width)
        self._rest = [make_chunk(step.weight_t.shape[1]) if step.weight_t is not None else None for step in one.dense]

    def finish(self, rows: slice, sums: Matrix | None) -> Matrix:
        """Apply the dense steps to the aggregated ``rows`` of ``first``; returns as many rows."""
        found = self.first[:, : self._pass.width]
        for step, buffer in zip(self._pass.dense, self._rest, strict=True):
            if step.weight_t is not None and buffer is not None:
                found = np.matmul(found, step.weight_t, out=buffer)
            apply_rest(step, found[rows], sums)
        return found[rows]


def make_chunk(width: int) -> Matrix:
    """A chunk of zeros, page-aligned: some libraries sum in an order that depends on addresses."""
    return aligned_bytes(CHUNK_ROWS * width * 4).view(np.float32).reshape(CHUNK_ROWS, width)


def apply_rest(step: Dense, rows: Matrix, sums: Matrix | None) -> None:
    """Bias and relu, in place."""
    if step.bias is not None:
        rows += sums[:, None] * step.bias if step.bias_times_sums and sums is not None else step.bias
    if step.relu:
        np.maximum(rows, 0.0, out=rows)


def cut_chunks(partition: Partition) -> list[tuple[int, int]]:
    """Positions in the partition, cut where the number of the row is a multiple of ``CHUNK_ROWS``."""
    first = 0 if partition.ids is not None else partition.first
    stop = first + partition.num_rows
    cuts = [first, *range(first // CHUNK_ROWS * CHUNK_ROWS + CHUNK_ROWS, stop, CHUNK_ROWS), stop]
    return [(a - first, b - first) for a, b in pairwise(cuts)]


def places_of(partition: Partition, start: int, stop: int) -> slice:
    """Where positions ``start`` up to ``stop`` of a partition, all of one chunk, are put in the chunk's buffers."""
    first = 0 if partition.ids is not None else (partition.first + start) % CHUNK_ROWS
    return slice(first, first + stop - start)


def write_rows(partition: Partition, start: int, stop: int, rows: Matrix, next_scale: Scale, out: Matrix) -> None:
    """Put finished rows, times the scale for the next pass, in their places."""
    where = (
        slice(partition.first + start, partition.first + stop) if partition.ids is None else partition.ids[start:stop]
    )
    if next_scale is None:
        out[where, : rows.shape[1]] = rows
    else:
        out[where, : rows.shape[1]] = rows * next_scale[where, None]


class BufferPool:
    """Hands every thread buffers that nobody else uses meanwhile."""

    def __init__(self, one: Pass, source_width: int, threads: int) -> None:
        self._free: SimpleQueue[ChunkBuffers] = SimpleQueue()
        for _ in range(threads):
            self._free.put(ChunkBuffers(one, source_width))

    @contextmanager
    def buffers(self) -> Iterator[ChunkBuffers]:
        """Some that are free, until the end of the block."""
        taken = self._free.get()
        try:
            yield taken
        finally:
            self._free.put(taken)
