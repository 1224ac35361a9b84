"""Our own kernels: rows pulled by threads, a chunk at a time, and multiplied while they are in cache."""

from __future__ import annotations

import numpy as np

from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.graph.adjacency import CsrRows, Scale
from ecgl_scale.infer.block import SourceBlock
from ecgl_scale.infer.dense import BufferPool, cut_chunks, places_of, write_rows
from ecgl_scale.infer.program import Pass
from ecgl_scale.infer.settings import Matrix


class NumbaWorker:
    """Pull kernels in threads; the same bits for any number of threads, partitions and column slices."""

    name = "numba"

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def begin(self, one: Pass, source_width: int) -> None:
        """Make buffers for every thread."""
        self._pass = one
        self._pool = BufferPool(one, source_width, self._threads)

    def take_source(self, source: Matrix) -> None:
        """Blocks carry their source."""

    def end(self) -> None:
        """Nothing is held."""

    def aggregate(self, block: SourceBlock, out: Matrix) -> None:
        """Sum rows straight into ``out``, or through a copy where its rows are not contiguous."""

        def sum_chunk(chunk: tuple[int, int]) -> None:
            start, stop = chunk
            target = out[start:stop]
            if target.flags.c_contiguous:
                _sum_rows(block, start, stop, target)
            else:
                rows = np.empty((stop - start, block.source.shape[1]), np.float32)
                _sum_rows(block, start, stop, rows)
                target[:] = rows[:, : target.shape[1]]

        for _ in map_bounded(sum_chunk, cut_chunks(block.partition), threads=self._threads):
            pass

    def run(self, block: SourceBlock, next_scale: Scale, out: Matrix) -> None:
        """Sum and multiply chunk by chunk."""

        def run_chunk(chunk: tuple[int, int]) -> None:
            start, stop = chunk
            with self._pool.buffers() as buffers:
                places = places_of(block.partition, start, stop)
                rows = _sum_rows(block, start, stop, buffers.first[places])
                sums = block.row_sums(rows, start, stop) if self._pass.needs_sums else None
                write_rows(block.partition, start, stop, buffers.finish(places, sums), next_scale, out)

        for _ in map_bounded(run_chunk, cut_chunks(block.partition), threads=self._threads):
            pass


def _sum_rows(block: SourceBlock, start: int, stop: int, out: Matrix) -> CsrRows:
    rows = block.cut(start, stop)
    row_scale = None if block.row_scale is None else block.row_scale[start:stop]
    first = block.first_own + start
    propagate_rows(rows.indptr, rows.indices, block.source, first, block.adds_self, None, row_scale, out)
    return rows
