"""What the first pass reads: the store's features, as float32, scaled on the fly.

Whole float32 rows go straight from the page cache to where they are wanted; everything else (float16, a slice of the
columns, sparse rows, scaling by row) goes through a block for each reading thread. A row's values do not depend on
which other rows or columns are read with it.
Memory: ``sizes.StoredFeatures.reader_bytes`` a thread, and what the caller asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.product import multiply_rows
from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.infer.chunks import cut_packed, pack_by_place
from ecgl_scale.infer.program import Dense
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.store.features.csr import to_dense
from ecgl_scale.store.features.files import AnyFeatures
from ecgl_scale.store.format import DENSE_DIRECTORY, SPARSE_DIRECTORY
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.units import MIB

PIECE_BYTES = 2 * MIB
"""Rows are scaled, spread and multiplied so many bytes at a time, while they are in cache."""

SPARSE_ROWS = 512
"""Rows of a piece that stays sparse."""

PIECES_AT_ONCE = 4
"""Pieces of rows that are gathered together, where some rows are: their products are fuller the more there are."""


class FeatureReader:
    """Features of a graph as float32 rows."""

    def __init__(self, graph: GraphStore, scaling: Scaling | None = None) -> None:
        if graph.features is None:
            raise UsageError("the store has no features to infer from", where=graph.path)
        self.graph = graph
        self.features: AnyFeatures = graph.features
        self.num_rows = self.features.num_rows
        self.width = self.features.num_features
        self.is_sparse = self.features.is_sparse
        self.scaling = scaling if scaling is not None and scaling.kind != "none" else None
        self.piece_rows = piece_rows(self.width)
        folder = SPARSE_DIRECTORY if self.is_sparse else DENSE_DIRECTORY
        files = graph.manifest.files.items()
        self.read_bytes = sum(record.size_bytes for name, record in files if f"/{folder}/" in f"/{name}")

    def identity(self) -> dict[str, Json]:
        """Tells these rows from others: which store, and as much of a scaling as matters."""
        scaling = self.scaling
        moments = [] if scaling is None else [scaling.mean, scaling.deviation]
        crcs = [None if column is None else crc32c_of(np.ascontiguousarray(column)) for column in moments]
        return {"store": self.graph.identity, "scaling": None if scaling is None else [scaling.kind, *crcs]}

    def blocks(self) -> list[Block]:
        """Blocks as stored."""
        return self.features.blocks()

    @property
    def reads_in_place(self) -> bool:
        """Whether whole rows are read without a buffer."""
        return not self.is_sparse and self.features.dtype == np.float32

    def fill(self, first: int, stop: int, scale: Any, out: Matrix, *, threads: int) -> None:
        """Write columns ``first`` up to ``stop`` of all rows, times ``scale`` of each row, into all of ``out``."""
        features = self.features

        def read(block: Block) -> None:
            target = out[block.start : block.stop]
            factors = None if scale is None else scale[block.start : block.stop]
            if self.reads_in_place and stop - first == self.width:
                features.read_dense(block, target)
                for start, end in _pieces(block.num_rows, self.piece_rows):
                    if self.scaling is not None:
                        target[start:end] = self.scaling.apply(target[start:end])
                    if factors is not None:
                        target[start:end] *= factors[start:end, None]
                return
            for start, rows in self._dense_pieces(block):
                end = start + len(rows)
                target[start:end] = rows[:, first:stop]
                if factors is not None:
                    target[start:end] *= factors[start:end, None]

        for _ in map_bounded(read, self.features.blocks(), threads=threads):
            pass

    def gather(self, ids: NDArray[np.int64], scale: Any, *, sparingly: bool = False) -> Matrix:
        """Rows ``ids``, times their scale. Memory: the result, a gather's and, scaled, a piece's."""
        rows: Matrix
        if self.features.kind == "sparse":
            found = self.features.rows_sparingly(ids) if sparingly else self.features.rows(ids)
            rows = np.empty((ids.size, self.width), np.float32)
            for start, end in _pieces(ids.size, self.piece_rows):
                rows[start:end] = self._spread(_cut(found, start, end))
        else:
            rows = self.features.rows(ids).astype(np.float32, copy=False)
            if self.scaling is not None:
                for start, end in _pieces(ids.size, self.piece_rows):
                    rows[start:end] = self.scaling.apply(rows[start:end])
        if scale is not None:
            rows *= scale[ids, None]
        return rows

    def multiply(self, block: Block, step: Dense, scale: Any, out: Matrix) -> None:
        """Rows of a block times a weight, plus its bias, times the scale of each row; ``out`` is the block's rows."""
        weight_t = step.weight_t if step.weight_t is not None else np.eye(self.width, dtype=np.float32)
        width = weight_t.shape[1]
        if self.features.kind == "sparse" and self.stays_sparse:
            stored = self.features.read(block)
            for start, end in _pieces(block.num_rows, piece_rows(width)):
                rows = self._scaled(stored, start, end)
                multiply_rows(rows.indptr, rows.indices, rows.values, weight_t, out[start:end])
        else:
            # Always as many rows: a product's bits may depend on its shape, so the last ones are padded.
            padded = aligned_bytes(self.piece_rows * self.width * 4).view(np.float32).reshape(-1, self.width)
            for start, dense in self._dense_pieces(block):
                padded[: len(dense)] = dense
                out[start : start + len(dense), :width] = (padded @ weight_t)[: len(dense)]
        if step.bias is not None:
            out[:, :width] += step.bias
        if scale is not None:
            out[:, :width] *= scale[block.start : block.stop, None]

    def multiply_some(self, ids: NDArray[np.int64], step: Dense, out: Matrix) -> None:
        """Rows ``ids``, which ascend, times a weight, plus its bias: the bits that ``multiply`` gives.

        In a product each row has the place that it has there. Memory: eight pieces.
        """
        weight_t = step.weight_t if step.weight_t is not None else np.eye(self.width, dtype=np.float32)
        width = weight_t.shape[1]
        starts = np.array([block.start for block in self.blocks()])
        for start, end in _pieces(ids.size, PIECES_AT_ONCE * self.piece_rows):
            wanted, target = ids[start:end], out[start:end]
            if self.features.kind == "sparse" and self.stays_sparse:
                rows = _readonly(self.features.rows_sparingly(wanted))
                rows = rows if self.scaling is None else _readonly(self.scaling.apply_sparse(rows))
                multiply_rows(rows.indptr, rows.indices, rows.values, weight_t, target)
            else:
                dense = self.gather(wanted, None, sparingly=True)
                local = wanted - starts[np.searchsorted(starts, wanted, "right") - 1]
                order = pack_by_place(local % self.piece_rows)
                padded = aligned_bytes(self.piece_rows * self.width * 4).view(np.float32).reshape(-1, self.width)
                for chunk in cut_packed((local % self.piece_rows)[order]):
                    here = order[chunk.start : chunk.stop]
                    padded[chunk.places] = dense[here]
                    target[here, :width] = (padded @ weight_t)[chunk.places]
        if step.bias is not None:
            out[:, :width] += step.bias

    def each_piece(self, use: Callable[[int, CsrBlock], None], *, threads: int) -> None:
        """``use`` of the first row and the rows of every piece, scaled and sparse as they are, in threads.

        The offsets of a piece need not begin at 0. Memory: 20 bytes a value of a piece and thread, where it is scaled.
        """
        for block in self.blocks():
            stored = self.features.read_csr(block)

            def read(piece: tuple[int, int], block: Block = block, stored: CsrBlock = stored) -> None:
                use(block.start + piece[0], self._scaled(stored, *piece))

            for _ in map_bounded(read, _pieces(block.num_rows, SPARSE_ROWS), threads=threads):
                pass

    def _scaled(self, stored: CsrBlock, start: int, end: int) -> CsrBlock:
        if self.scaling is None:
            return CsrBlock(stored.indptr[start : end + 1], stored.indices, stored.values)
        return _readonly(self.scaling.apply_sparse(_cut(stored, start, end)))

    @property
    def stays_sparse(self) -> bool:
        """Whether rows are stored without zeros and have them still when they are scaled."""
        return self.is_sparse and (self.scaling is None or self.scaling.keeps_zeros)

    def _dense_pieces(self, block: Block) -> Any:
        """(first row within the block, float32 rows with all columns), a piece at a time."""
        if self.features.kind == "sparse":
            stored = self.features.read(block)
            for start, end in _pieces(block.num_rows, self.piece_rows):
                yield start, self._spread(_cut(stored, start, end))
            return
        rows = self.features.read(block)
        for start, end in _pieces(block.num_rows, self.piece_rows):
            piece = rows[start:end].astype(np.float32, copy=False)
            yield start, piece if self.scaling is None else self.scaling.apply(piece)

    def _spread(self, rows: CsrBlock) -> Matrix:
        if self.scaling is None:
            return to_dense(rows, self.width)
        if self.scaling.keeps_zeros:
            return to_dense(self.scaling.apply_sparse(rows), self.width)
        return self.scaling.apply(to_dense(rows, self.width))


def piece_rows(width: int) -> int:
    """Rows in a piece; follows from the width alone."""
    return max(PIECE_BYTES // (width * 4), 1)


def _pieces(num_rows: int, rows_per_piece: int) -> list[tuple[int, int]]:
    return [(start, min(start + rows_per_piece, num_rows)) for start in range(0, num_rows, rows_per_piece)]


def _cut(rows: CsrBlock, start: int, end: int) -> CsrBlock:
    return _readonly(rows.cut(start, end))


def _readonly(rows: CsrBlock) -> CsrBlock:
    """Rows are made read-only, as mapped ones are, so that kernels are compiled once."""
    for array in (rows.indptr, rows.indices, rows.values):
        array.setflags(write=False)
    return rows
