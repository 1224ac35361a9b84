"""Do rows and tiles hold the same edges? An order-independent checksum of both.

    checksum = sum over edges of mix(destination, source)  modulo 2**64

Rows and tiles list the same edges in different orders, so a sum is compared; ``mix`` spreads every bit of an edge, so
that a wrong, missing or extra edge changes the sum except with probability 2**-64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel
from ecgl_kernels.random import mix
from ecgl_kernels.tiles import RANGE_BITS


@kernel
def checksum_rows(indptr: NDArray[np.int64], indices: NDArray[Any], first_row: int) -> np.uint64:
    """Checksum of CSR rows whose first destination is ``first_row``; ``indptr`` may start anywhere in ``indices``."""
    total = np.uint64(0)
    for row in range(indptr.size - 1):
        destination = np.uint64(first_row + row)
        for i in range(indptr[row], indptr[row + 1]):
            total += mix(destination, np.uint64(indices[i]))
    return total


@kernel
def checksum_tiles(packed: NDArray[np.uint32], bounds: NDArray[np.int64], first_row: int) -> np.uint64:
    """Checksum of one destination range's tiles; ``bounds[2 * k : 2 * k + 2]`` are start and stop of tile k."""
    low = np.uint64((1 << RANGE_BITS) - 1)
    total = np.uint64(0)
    for k in range(bounds.size // 2):
        first_source = np.uint64(k) << np.uint64(RANGE_BITS)
        for i in range(bounds[2 * k], bounds[2 * k + 1]):
            edge = np.uint64(packed[i])
            row = np.uint64(first_row) + (edge >> np.uint64(RANGE_BITS))
            total += mix(row, first_source + (edge & low))
    return total
