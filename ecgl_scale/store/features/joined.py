"""Features of a store that has grown: a matrix for each generation that brought rows, seen as one.

Rows and blocks are numbered through; a block belongs to one matrix, which reads and checks it. How rows are cut may
differ from matrix to matrix, so sizes are those of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.engine.block import Block
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.source import CsrBlock, FloatArray


class JoinedDense(DenseFeatures):
    """Dense matrices, one below the other."""

    def __init__(self, parts: Sequence[DenseFeatures]) -> None:
        self._parts = parts
        self._firsts, self._places, blocks = _number_through(parts)
        FeatureStore.__init__(self, blocks, [file for part in parts for file in part._files])
        self.directory = parts[0].directory
        self.num_rows = sum(part.num_rows for part in parts)
        self.num_features = parts[0].num_features
        self.num_values = self.num_rows * self.num_features
        self.dtype = parts[0].dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of every row on disk."""
        return self._parts[0].row_bytes

    @property
    def rows_per_read(self) -> int:
        """The largest chunk."""
        return max(part.rows_per_read for part in self._parts)

    @property
    def block_bytes(self) -> int:
        """Memory of the largest block."""
        return max(part.block_bytes for part in self._parts)

    @property
    def chunk_buffer_bytes(self) -> int:
        """Size of ``chunk_buffer()``."""
        return max(part.chunk_buffer_bytes for part in self._parts)

    def chunk_buffer(self) -> NDArray[np.uint8]:
        """Memory for ``read_span``: the largest chunk."""
        return aligned_bytes(self.chunk_buffer_bytes)

    def buffers(self, count: int = 3) -> list[FloatArray]:
        """Memory for ``stream(into=...)``: ``count`` times the largest block."""
        flat = [aligned_bytes(self.block_bytes).view(self.dtype) for _ in range(count)]
        return [memory.reshape(-1, self.num_features) for memory in flat]

    def read(self, block: Block, out: FloatArray | None = None) -> FloatArray:
        """Rows of one block, into ``out`` where given."""
        part, own = self._places[block.index]
        return self._parts[part].read(own, out)

    read_dense = read

    def read_span(
        self, start: int, stop: int, buffer: NDArray[np.uint8], *, check: bool
    ) -> Iterator[tuple[int, FloatArray]]:
        """First row and rows of each chunk, or part of one: see ``DenseFeatures.read_span``."""
        for part, first, begin, end in self._cut(start, stop):
            for row, rows in part.read_span(begin, end, buffer[: part.chunk_buffer_bytes], check=check):
                yield first + row, rows

    def will_need(self, start: int, stop: int) -> None:
        """Ask the system to read these rows meanwhile."""
        for part, _, begin, end in self._cut(start, stop):
            part.will_need(begin, end)

    def gather(self, wanted: NDArray[np.int64], order: NDArray[np.int64], out: FloatArray, *, threads: int) -> None:
        """Put the rows ``wanted``, which ascend, to the rows ``order`` of ``out``."""
        cuts = np.searchsorted(wanted, [*self._firsts, self.num_rows]).tolist()
        for part, first, begin, end in zip(self._parts, self._firsts, cuts[:-1], cuts[1:], strict=True):
            if begin < end:
                part.gather(wanted[begin:end] - first, order[begin:end], out, threads=threads)

    def _cut(self, start: int, stop: int) -> Iterator[tuple[DenseFeatures, int, int, int]]:
        """The parts that have rows ``start`` up to ``stop``: their first row, and which of theirs these are."""
        for part, first in zip(self._parts, self._firsts, strict=True):
            begin, end = max(start - first, 0), min(stop - first, part.num_rows)
            if begin < end:
                yield part, first, begin, end


class JoinedSparse(SparseFeatures):
    """Sparse matrices, one below the other."""

    def __init__(self, parts: Sequence[SparseFeatures]) -> None:
        self._parts = parts
        _, self._places, blocks = _number_through(parts)
        FeatureStore.__init__(self, blocks, [file for part in parts for file in part._files])
        self.directory = parts[0].directory
        self.num_rows = sum(part.num_rows for part in parts)
        self.num_features = parts[0].num_features
        self.num_values = sum(part.num_values for part in parts)
        self.dtype = parts[0].dtype

    @property
    def rows_per_read(self) -> int:
        """The largest block."""
        return max(part.rows_per_read for part in self._parts)

    def read(self, block: Block) -> CsrBlock:
        """Rows of one block, as views of the mapped file."""
        part, own = self._places[block.index]
        return self._parts[part].read(own)

    def map_unchecked(self, block: Block) -> tuple[CsrBlock, NDArray[np.int64]]:
        """As ``read``, without a look at the rows."""
        part, own = self._places[block.index]
        return self._parts[part].map_unchecked(own)

    read_csr = read


def join_features(parts: Sequence[DenseFeatures | SparseFeatures]) -> JoinedDense | JoinedSparse:
    """One matrix of several, all dense or all sparse, with the same columns."""
    dense = [part for part in parts if isinstance(part, DenseFeatures)]
    return JoinedDense(dense) if dense else JoinedSparse([part for part in parts if isinstance(part, SparseFeatures)])


def _number_through(parts: Sequence[Any]) -> tuple[list[int], list[tuple[int, Block]], list[Block]]:
    """First row of each part, part and own block of each block, and the blocks."""
    firsts = [0, *np.cumsum([part.num_rows for part in parts]).tolist()][:-1]
    places = [(index, own) for index, part in enumerate(parts) for own in part.blocks()]
    blocks = [
        Block(number, firsts[index] + own.start, firsts[index] + own.stop) for number, (index, own) in enumerate(places)
    ]
    return firsts, places, blocks
