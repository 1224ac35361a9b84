"""Features of a store that has dropped nodes: their rows are zeros, whatever the files still hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.joined import JoinedDense, JoinedSparse
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.source import CsrBlock, FloatArray


class LiveDense(JoinedDense):
    """Dense matrices, one below the other, without the rows of dropped nodes."""

    def __init__(self, parts: Sequence[DenseFeatures], dropped: Dropped) -> None:
        super().__init__(parts)
        self._dropped = dropped
        self.num_dropped = dropped.ids.size

    def read(self, block: Block, out: FloatArray | None = None) -> FloatArray:
        """Rows of one block, into ``out`` where given."""
        rows = super().read(block, out)
        rows[self._dropped.within(block.start, block.stop)] = 0
        return rows

    read_dense = read

    def read_span(
        self, start: int, stop: int, buffer: NDArray[np.uint8], *, check: bool
    ) -> Iterator[tuple[int, FloatArray]]:
        """First row and rows of each chunk, or part of one: see ``DenseFeatures.read_span``."""
        for first, rows in super().read_span(start, stop, buffer, check=check):
            rows[self._dropped.within(first, first + len(rows))] = 0
            yield first, rows

    def gather(self, wanted: NDArray[np.int64], order: NDArray[np.int64], out: FloatArray, *, threads: int) -> None:
        """Put the rows ``wanted``, which ascend, to the rows ``order`` of ``out``."""
        super().gather(wanted, order, out, threads=threads)
        out[order[self._dropped.among(wanted)]] = 0


class LiveSparse(JoinedSparse):
    """Sparse matrices, one below the other, without the rows of dropped nodes."""

    def __init__(self, parts: Sequence[SparseFeatures], dropped: Dropped) -> None:
        super().__init__(parts)
        self._dropped = dropped
        self.num_dropped = dropped.ids.size

    @property
    def block_bytes(self) -> int:
        """A block with dropped nodes is copied."""
        return max(file.size_bytes for file in self._files)

    def read(self, block: Block) -> CsrBlock:
        """Rows of one block: views of the mapped file, or a copy where some were dropped."""
        rows, gone = super().read(block), self._dropped.within(block.start, block.stop)
        if not gone.size:
            return rows
        counts = np.diff(rows.indptr)
        is_live = np.ones(block.num_rows, np.bool_)
        is_live[gone] = False
        kept = np.repeat(is_live, counts)
        counts[gone] = 0
        copy = CsrBlock(np.append(0, np.cumsum(counts)), rows.indices[kept], rows.values[kept])
        for array in (copy.indptr, copy.indices, copy.values):
            array.setflags(write=False)  # as mapped ones cannot be written, so that kernels are compiled once
        return copy

    read_csr = read


def live_features(parts: Sequence[DenseFeatures | SparseFeatures], dropped: Dropped) -> LiveDense | LiveSparse:
    """One matrix of one or several, all dense or all sparse, in which dropped nodes have zeros."""
    dense = [part for part in parts if isinstance(part, DenseFeatures)]
    if dense:
        return LiveDense(dense, dropped)
    return LiveSparse([part for part in parts if isinstance(part, SparseFeatures)], dropped)
