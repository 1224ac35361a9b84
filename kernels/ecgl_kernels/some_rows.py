"""Some rows out of a file of rows that nobody has checked: whatever its bytes are, memory is safe.

A row is copied where its offsets lie within the file and in order. Its ids are compared as they are copied: they must
ascend and be nodes. Only the pages of the rows and of their offsets are touched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

Ints = NDArray[np.int64]


@kernel
def row_lengths(offsets: Ints, num_values: int, rows: Ints, out: Ints) -> int:
    """Lengths of some rows; returns the position of the first whose offsets make no sense, -1 if none."""
    for i in range(rows.size):
        start, stop = offsets[rows[i]], offsets[rows[i] + 1]
        if start < 0 or stop < start or stop > num_values:
            return i
        out[i] = stop - start
    return -1


@kernel
def copy_checked_rows(
    offsets: Ints, values: NDArray[Any], rows: Ints, limit: int, ends: Ints, out: NDArray[Any]
) -> int:
    """Copy rows to where they end at ``ends``; returns the position of the first with ids that are wrong, -1 if none.

    ``ends`` come from ``row_lengths``; a row that has another length by now is one of the wrong ones.
    """
    start = ends[0]
    highest = np.uint64(limit)
    for i in range(rows.size):
        first, length = offsets[rows[i]], ends[i + 1] - start
        if first < 0 or first + length > values.size or offsets[rows[i] + 1] - first != length:
            return i
        for p in range(length):
            value = values[first + p]
            if np.uint64(value) >= highest or (p > 0 and value < out[start + p - 1]):
                return i
            out[start + p] = value
        start = ends[i + 1]
    return -1
