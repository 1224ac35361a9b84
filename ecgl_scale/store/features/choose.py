"""Whether features are stored dense or sparse; and a source of one kind turned into the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from ecgl_scale.errors import UsageError
from ecgl_scale.store.features.csr import clean_block, to_dense
from ecgl_scale.store.features.dense_write import PIECE_BYTES, checked_piece
from ecgl_scale.store.features.face import FeatureKind
from ecgl_scale.store.source import AnyArray, CsrBlock, DenseSource, SparseSource

SPARSE_BELOW = 0.10
"""A sparse value takes twice the bytes of a dense one, and is slower to use: well below one half it pays."""
SAMPLE_ROWS = 65_536


def choose_kind(
    source: DenseSource | SparseSource, requested: Literal["auto", "dense", "sparse"] = "auto", *, num_rows: int
) -> FeatureKind:
    """What to store: what was asked for, else sparse if fewer than a tenth of the values are not zero.

    A sparse source knows how many values it has; of a dense one, its first block is counted: at most 65,536 rows, and
    at most 8 MiB of them. Memory: that block.
    """
    if requested in ("dense", "sparse"):
        return requested
    if requested != "auto":
        raise UsageError(f"no such kind of features: {requested}", expected="auto, dense or sparse")
    if source.kind == "sparse":
        density = source.num_values / max(num_rows * source.num_features, 1)
    else:
        first = next(iter(source.blocks(min(_rows_at_once(source), SAMPLE_ROWS))), np.empty((0, 0)))
        density = np.count_nonzero(first) / first.size if first.size else 1.0
    return "sparse" if density < SPARSE_BELOW else "dense"


def _rows_at_once(source: DenseSource | SparseSource) -> int:
    return max(PIECE_BYTES // max(source.num_features * source.dtype.itemsize, 1), 1)


def as_dense(source: SparseSource) -> DenseSource:
    """Give rows their zeros, and check them on the way. Memory: 8 MiB, or one row."""

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        row = 0
        for piece in source.blocks(min(max_rows, _rows_at_once(source))):
            clean = clean_block(piece, source.num_features, origin=source.origin, first_row=row)
            row += clean.num_rows
            yield to_dense(clean, source.num_features)

    return DenseSource(source.num_features, np.dtype(np.float32), source.origin, blocks)


def as_sparse(source: DenseSource) -> SparseSource:
    """Leave zeros out; the source is read once now, to count. Memory: about three times 8 MiB."""

    def pieces(max_rows: int) -> Iterator[AnyArray]:
        for piece in source.blocks(min(max_rows, _rows_at_once(source))):
            checked_piece(piece, source.num_features, source.origin)
            yield piece

    def blocks(max_rows: int) -> Iterator[CsrBlock]:
        for piece in pieces(max_rows):
            yield CsrBlock.of_dense(piece)

    num_values = sum(int(np.count_nonzero(piece)) for piece in pieces(SAMPLE_ROWS))
    return SparseSource(source.num_features, num_values, source.origin, blocks)
