"""Rows of features, dense and sparse: checked, gathered, scattered. One pass each, memory given by the caller.

Dense rows are copied as the unsigned integers of their width (uint16, uint32): the bits are the same, and numba
has no float16. Sparse rows are CSR with int64 offsets, uint32 columns and float32 values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel

Columns = NDArray[np.integer[Any]]
Bits = NDArray[np.uint16] | NDArray[np.uint32]

CSR_OK, CSR_COLUMN_RANGE, CSR_DUPLICATE, CSR_NOT_FINITE = 0, 1, 2, 3
"""What ``clean_csr`` found; anything but ``CSR_OK`` comes with the row."""

_PROBE = 4096
_CRC32C_POLYNOMIAL = np.uint32(0x82F63B78)
_ONE = np.uint32(1)
_TOP_BIT = np.uint32(0x80000000)


@kernel
def first_nonfinite(bits: Bits, exponent: int) -> int:
    """Flat index of the first value whose ``exponent`` bits are all ones (IEEE 754: infinity or NaN), else -1.

    A probe without early exit vectorises; only the probe that holds a bad value is searched.
    """
    for start in range(0, bits.size, _PROBE):
        stop = min(start + _PROBE, bits.size)
        bad = 0
        for i in range(start, stop):
            bad += (bits[i] & exponent) == exponent
        if bad:
            for i in range(start, stop):
                if (bits[i] & exponent) == exponent:
                    return i
    return -1


@kernel
def scatter_rows(packed: Bits, starts: NDArray[np.int64], positions: NDArray[np.int64], out: Bits) -> None:
    """Copy the row that begins at ``packed[starts[i]]`` to ``out[positions[i]]``, for all i.

    Callers sort ``starts``, so that ``packed`` is read forwards; the writes are whole rows wherever they go.
    """
    width = out.shape[1]
    for i in range(starts.size):
        start, row = starts[i], positions[i]
        for j in range(width):
            out[row, j] = packed[start + j]


@inline
def _multiply_crc32c(a: np.uint32, b: np.uint32) -> np.uint32:
    product = np.uint32(0)
    bit = _TOP_BIT
    while bit:
        if a & bit:
            product ^= b
        b = (b >> _ONE) ^ _CRC32C_POLYNOMIAL if b & _ONE else b >> _ONE
        bit >>= _ONE
    return product


@kernel
def shift_crc32c(num_bytes: int) -> np.uint32:
    """x^(8 * num_bytes) modulo the crc32c polynomial: what ``join_crc32c`` multiplies by to append that many bytes."""
    power = _TOP_BIT >> np.uint32(8)
    result = _TOP_BIT
    while num_bytes:
        if num_bytes & 1:
            result = _multiply_crc32c(power, result)
        power = _multiply_crc32c(power, power)
        num_bytes >>= 1
    return result


@kernel
def join_crc32c(crcs: NDArray[np.uint32], shifts: NDArray[np.uint32]) -> np.uint32:
    """crc32c of pieces laid end to end, from the crc32c of each and ``shift_crc32c`` of each one's length.

    A crc is linear: crc(A + B) = crc(A) * x^(8 |B|) + crc(B) over GF(2), as in zlib's crc32_combine.
    """
    joined = np.uint32(0)
    for i in range(crcs.size):
        joined = _multiply_crc32c(joined, shifts[i]) ^ crcs[i]
    return joined


@kernel
def clean_csr(
    indptr: NDArray[np.int64],
    indices: Columns,
    values: NDArray[np.float32],
    num_features: int,
    out_indptr: NDArray[np.int64],
    out_indices: Columns,
    out_values: NDArray[np.float32],
) -> tuple[int, int]:
    """Copy rows with columns sorted and zeros dropped; return ``(CSR_OK, -1)`` or what is wrong and in which row.

    ``indptr`` must have been checked. The outputs are as long as the inputs; ``out_indptr[-1]`` says how much is used.
    """
    used = 0
    out_indptr[0] = 0
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        ordered = True
        previous = -1
        for i in range(start, stop):
            column = indices[i]
            if column < 0 or column >= num_features:
                return CSR_COLUMN_RANGE, row
            if not np.isfinite(values[i]):
                return CSR_NOT_FINITE, row
            if column <= previous:
                ordered = False
            previous = column
        if ordered:
            for i in range(start, stop):
                if values[i] != 0:
                    out_indices[used] = indices[i]
                    out_values[used] = values[i]
                    used += 1
        else:
            order = np.argsort(indices[start:stop])
            previous = -1
            for k in order:
                column = indices[start + k]
                if column == previous:
                    return CSR_DUPLICATE, row
                previous = column
                if values[start + k] != 0:
                    out_indices[used] = column
                    out_values[used] = values[start + k]
                    used += 1
        out_indptr[row + 1] = used
    return CSR_OK, -1


@kernel
def csr_to_dense(
    indptr: NDArray[np.int64], indices: Columns, values: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """Spread sparse rows over ``out``, which is zeroed on the way."""
    for row in range(indptr.size - 1):
        for j in range(out.shape[1]):
            out[row, j] = 0
        for i in range(indptr[row], indptr[row + 1]):
            out[row, indices[i]] = values[i]


@kernel
def csr_columns(
    indptr: NDArray[np.int64], indices: Columns, values: NDArray[np.float32], first: int, out: NDArray[np.float32]
) -> None:
    """Spread the columns from ``first`` on, as many as ``out`` has, of sparse rows over ``out``, zeroed on the way."""
    stop = first + out.shape[1]
    for row in range(indptr.size - 1):
        for j in range(out.shape[1]):
            out[row, j] = 0
        for i in range(indptr[row], indptr[row + 1]):
            if first <= indices[i] < stop:
                out[row, indices[i] - first] = values[i]


@kernel
def add_squares(rows: NDArray[np.float32], total: NDArray[np.float64]) -> None:
    """Add the squares of each row to its total, column after column: the same sum for any slices of the columns."""
    for row in range(rows.shape[0]):
        found = total[row]
        for j in range(rows.shape[1]):
            value = np.float64(rows[row, j])
            found += value * value
        total[row] = found


@kernel
def gather_csr(
    indptr: NDArray[np.int64],
    indices: Columns,
    values: NDArray[np.float32],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    out_indptr: NDArray[np.int64],
    out_indices: Columns,
    out_values: NDArray[np.float32],
) -> None:
    """Copy sparse row ``rows[i]`` to row ``positions[i]`` of the output, whose ``out_indptr`` is already final."""
    for k in range(rows.size):
        target = out_indptr[positions[k]]
        for i in range(indptr[rows[k]], indptr[rows[k] + 1]):
            out_indices[target] = indices[i]
            out_values[target] = values[i]
            target += 1
