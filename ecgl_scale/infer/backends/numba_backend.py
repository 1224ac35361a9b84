"""Our own kernels: rows pulled by threads, a chunk at a time, and multiplied while they are in cache."""

from __future__ import annotations

import numpy as np

from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.graph.adjacency import CsrRows
from ecgl_scale.infer.chunks import BufferPool, PackedChunk, Target, cut_chunks, places_of
from ecgl_scale.infer.program import Pass
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.infer.source_block import SourceBlock


class NumbaBackend:
    """Pull kernels in threads; the same bits for any number of threads, partitions and column slices."""

    name = "numba"

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def begin(self, layer_pass: Pass, source_width: int) -> None:
        """Make buffers for every thread."""
        self._pass = layer_pass
        self._pool = BufferPool(layer_pass, source_width, self._threads)

    def take_source(self, source: Matrix) -> None:
        """The kernels take the source from the block."""

    def end(self) -> None:
        """The kernels hold nothing."""

    def aggregate(self, block: SourceBlock, out: Matrix) -> None:
        """Sum rows straight into ``out``."""

        def sum_chunk(chunk: tuple[int, int]) -> None:
            _sum_rows(block, *chunk, out[slice(*chunk)])

        for _ in map_bounded(sum_chunk, cut_chunks(block.first_row, block.num_rows), threads=self._threads):
            pass

    def run(self, block: SourceBlock, target: Target) -> None:
        """Sum and multiply chunk by chunk."""

        def run_chunk(chunk: tuple[int, int]) -> None:
            start, stop = chunk
            with self._pool.buffers() as buffers:
                places = places_of(block.first_row, start, stop)
                rows = _sum_rows(block, start, stop, buffers.first[places])
                sums = block.row_sums(rows, start, stop) if self._pass.needs_sums else None
                target.write(start, stop, buffers.finish(places, sums))

        def run_packed(chunk: PackedChunk) -> None:
            with self._pool.buffers() as buffers:
                summed = np.empty((chunk.places.size, buffers.first.shape[1]), np.float32)
                rows = _sum_rows(block, chunk.start, chunk.stop, summed)
                buffers.first[chunk.places] = summed
                sums = block.row_sums(rows, chunk.start, chunk.stop) if self._pass.needs_sums else None
                target.write(chunk.start, chunk.stop, buffers.finish_scattered(chunk.places, sums))

        for _ in map_bounded(run_packed, block.packed, threads=self._threads):
            pass
        chunks = [] if block.packed else cut_chunks(block.first_row, block.num_rows)
        for _ in map_bounded(run_chunk, chunks, threads=self._threads):
            pass


def _sum_rows(block: SourceBlock, start: int, stop: int, out: Matrix) -> CsrRows:
    rows = block.cut(start, stop)
    row_scale = None if block.row_scale is None else block.row_scale[start:stop]
    first = block.first_own + start
    propagate_rows(rows.indptr, rows.indices, block.source, first, block.adds_self, None, row_scale, out)
    return rows
