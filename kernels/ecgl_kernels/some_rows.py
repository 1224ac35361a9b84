"""Some rows out of a file of rows that nobody has checked.

A row may be copied where its offsets lie within the file and in order; its ids are checked when they are copied. Only
the offsets of these rows are looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

Ints = NDArray[np.int64]


@kernel
def find_bad_offsets(offsets: Ints, num_values: int, rows: Ints) -> int:
    """Position of the first of ``rows`` whose offsets make no sense in a file of so many values; -1 if none."""
    for i in range(rows.size):
        start, stop = offsets[rows[i]], offsets[rows[i] + 1]
        if start < 0 or stop < start or stop > num_values:
            return i
    return -1
