"""CSR rows of one stripe -> packed tiles, the layout of the PageRank sweep.

Nodes are cut into ranges of 2**16. A stripe is some consecutive destination ranges; tile (k, d) holds its edges from
source range k to the stripe's d-th destination range, each as one uint32: destination low bits << 16 | source low bits.
Tiles lie k-major, so a sweep that reads the stripe front to back gathers from one 2**16 slice at a time and adds into
the stripe's few slices: both stay in cache, and an edge costs 4 bytes of disk and no random memory access.

Rows come sorted by destination and then source, and both kernels walk them in that order, so every tile is sorted too.
Each call handles one destination range: threads take different ranges and never write the same tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

RANGE_BITS = 16
"""One range is 65,536 nodes: both ends of an edge fit a uint32, and a float32 slice fits L2."""


@kernel
def count_tiles(indices: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Add the number of edges from each source range to ``counts``, for one destination range's ``indices``."""
    shift = np.uint64(RANGE_BITS)
    for i in range(indices.size):
        counts[np.uint64(indices[i]) >> shift] += 1


@kernel
def scatter_tiles(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    first_range: int,
    last_range: int,
    cursors: NDArray[np.int64],
    packed: NDArray[np.uint32],
) -> None:
    """Pack the edges of one destination range whose source range lies in [first_range, last_range).

    ``indptr`` are the offsets of the range's rows into ``indices``; ``cursors[k]`` is the next place of tile k in
    ``packed``.
    """
    shift = np.uint64(RANGE_BITS)
    low = np.uint64((1 << RANGE_BITS) - 1)
    first = np.uint64(first_range)
    span = np.uint64(last_range - first_range)
    for row in range(indptr.size - 1):
        high = np.uint64(row) << shift
        for i in range(indptr[row], indptr[row + 1]):
            source = np.uint64(indices[i])
            k = source >> shift
            # Below ``first`` the difference wraps, so one comparison tests both ends.
            if k - first < span:
                packed[cursors[k]] = high | (source & low)
                cursors[k] += 1


@kernel
def pack_tile(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    source_range: int,
    place: NDArray[np.int64],
    packed: NDArray[np.uint32],
) -> int:
    """Pack one tile piece by piece, for a tile larger than any buffer: its rows' order is already the tile's.

    ``place`` is the row and the position in ``indices`` to go on from; returns how many edges were packed, fewer than
    ``packed`` has room for only at the end of the tile.
    """
    shift = np.uint64(RANGE_BITS)
    low = np.uint64((1 << RANGE_BITS) - 1)
    wanted = np.uint64(source_range)
    used = 0
    row, i = place[0], place[1]
    while row < indptr.size - 1:
        while i < indptr[row + 1]:
            source = np.uint64(indices[i])
            if source >> shift == wanted:
                if used == packed.size:
                    place[0], place[1] = row, i
                    return used
                packed[used] = np.uint64(row) << shift | (source & low)
                used += 1
            i += 1
        row += 1
    place[0], place[1] = row, i
    return used


@kernel
def find_bad_tile(
    packed: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    num_rows: int,
    num_sources: int,
    allow_duplicates: bool,
    has_order: bool = False,
) -> int:
    """First of one destination range's tiles that is unsorted, or reaches outside the graph or the file; -1 if none.

    ``offsets[2 * k], offsets[2 * k + 1]`` are start and stop of tile k; ``num_rows`` the range's rows; ``num_sources``
    the graph's nodes. With ``has_order`` the sources of a destination are in the order of nodes and not of columns, so
    only destinations ascend.
    """
    low = np.uint64((1 << RANGE_BITS) - 1)
    for k in range(offsets.size // 2):
        limit = np.uint64(num_sources) - (np.uint64(k) << np.uint64(RANGE_BITS))
        start, stop = offsets[2 * k], offsets[2 * k + 1]
        if start < 0 or stop < start or stop > packed.size:
            return k
        for i in range(start, stop):
            edge = np.uint64(packed[i])
            if edge >> np.uint64(RANGE_BITS) >= np.uint64(num_rows) or (edge & low) >= limit:
                return k
            if i == start:
                continue
            if has_order:
                if edge >> np.uint64(RANGE_BITS) < np.uint64(packed[i - 1]) >> np.uint64(RANGE_BITS):
                    return k
            elif packed[i] < packed[i - 1] or (packed[i] == packed[i - 1] and not allow_duplicates):
                return k
    return -1
