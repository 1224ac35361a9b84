"""Sparse rows in memory: checked, joined, gathered, and with their zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.rows import (
    CSR_COLUMN_RANGE,
    CSR_DUPLICATE,
    CSR_NOT_FINITE,
    CSR_OK,
    clean_csr,
    csr_to_dense,
    gather_csr,
)
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.source import CsrBlock

_WRONG = {
    CSR_COLUMN_RANGE: "a column index is outside the matrix",
    CSR_DUPLICATE: "a column appears twice in one row",
    CSR_NOT_FINITE: "a value is not finite in float32",
}


def clean_block(piece: CsrBlock, num_features: int, *, origin: str, first_row: int) -> CsrBlock:
    """Check rows from a source; give them back with sorted columns, without zeros, as uint32 and float32."""
    indptr, where = np.asarray(piece.indptr), f"{origin}, rows from {first_row}"
    whole = indptr.ndim == 1 and indptr.size > 0 and indptr.dtype.kind in "iu" and indptr[0] == 0
    whole = whole and indptr[-1] == len(piece.indices) == len(piece.values) and bool(np.all(indptr[1:] >= indptr[:-1]))
    if not whole:
        raise InvalidInputError(
            "the row offsets of a sparse matrix make no sense",
            where=where,
            expected="offsets that start at 0, never fall and end at the number of values",
        )
    if piece.indices.dtype.kind not in "iu" or piece.values.dtype.kind not in "fiub":
        found = f"{piece.indices.dtype} columns, {piece.values.dtype} values"
        raise InvalidInputError(f"a sparse matrix has {found}", where=where, expected="integers, and numbers")
    # uint64 columns past 2^63 come out negative and are refused as such.
    indptr = np.ascontiguousarray(indptr, dtype=np.int64)
    columns = np.ascontiguousarray(piece.indices, dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(piece.values, dtype=np.float32)
    cleaned = CsrBlock(np.empty_like(indptr), np.empty(columns.size, np.uint32), np.empty(columns.size, np.float32))
    code, row = clean_csr(indptr, columns, values, num_features, cleaned.indptr, cleaned.indices, cleaned.values)
    if code != CSR_OK:
        expected = f"each column once, from 0 to {num_features - 1}, with finite values"
        raise InvalidInputError(_WRONG[code], where=f"{origin}, row {first_row + row}", expected=expected)
    used = int(cleaned.indptr[-1])
    return CsrBlock(cleaned.indptr, cleaned.indices[:used], cleaned.values[:used])


def to_dense(rows: CsrBlock, num_features: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Spread clean sparse rows over an array. Memory: the result."""
    shape = (rows.num_rows, num_features)
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise UsageError(
            "this array cannot take the rows", where=f"{out.dtype} {out.shape}", expected=f"float32 {shape}"
        )
    csr_to_dense(rows.indptr, rows.indices, rows.values, out)
    return out


def join_csr(parts: Sequence[CsrBlock]) -> CsrBlock:
    """Put rows one after the other. Memory: the result."""
    ends = np.cumsum([0, *[part.indptr[-1] for part in parts]])
    offsets = [part.indptr[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return CsrBlock(
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def take_csr(rows: CsrBlock, positions: NDArray[np.int64]) -> CsrBlock:
    """Gather clean rows, in the order asked for, repeats allowed. Memory: the result + 16 bytes a row."""
    indptr = np.zeros(positions.size + 1, np.int64)
    np.cumsum(rows.indptr[positions + 1] - rows.indptr[positions], out=indptr[1:])
    taken = CsrBlock(indptr, np.empty(indptr[-1], np.uint32), np.empty(indptr[-1], np.float32))
    order = np.arange(positions.size)
    gather_csr(rows.indptr, rows.indices, rows.values, positions, order, indptr, taken.indices, taken.values)
    return taken
