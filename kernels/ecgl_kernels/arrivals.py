"""Sorted keys of edges that arrive at rows a store already has: which are new, and the same in tile order.

A key is ``row << source_bits | source``, with the row counted from ``first_row`` of its block (see ``partition``). What
a store has of a block lies in two shapes, and each has its own search:

    rows     the sources of a row, ascending: a binary search in the row
    pairs    ``dst``, ``src`` in tile order, (source >> 16, dst, source): a binary search by those three

A search and not a merge, because few keys arrive at many rows: only what is touched is read. Offsets come from a mapped
file that nobody may have compared yet, so none is followed past the array.

The key in tile order is ``(source >> 16) << (row_bits + 16) | row << 16 | source mod 2**16``: one number that sorts as
the three do, and from which both ends of the edge come back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels.tiles import RANGE_BITS


@kernel
def drop_repeats(keys: NDArray[np.uint64], previous: np.uint64) -> int:
    """Move the first of equal sorted keys to the front and return how many there are; ``previous`` came before them."""
    kept = 0
    for i in range(keys.size):
        key = keys[i]
        if key != previous:
            keys[kept] = key
            kept += 1
            previous = key
    return kept


@kernel
def drop_known_rows(
    keys: NDArray[np.uint64], source_bits: int, first_row: int, offsets: NDArray[np.int64], values: NDArray[Any]
) -> int:
    """Move keys whose source is not in its row to the front and return how many there are.

    Row ``r`` of a key is row ``first_row + r`` of ``offsets``; rows past the last have no sources yet.
    """
    high = np.uint64(source_bits)
    mask = (np.uint64(1) << high) - np.uint64(1)
    kept = 0
    for i in range(keys.size):
        row = first_row + np.int64(keys[i] >> high)
        source = keys[i] & mask
        low, stop = 0, 0
        if row < offsets.size - 1:
            stop = min(max(offsets[row + 1], 0), values.size)
            low = min(max(offsets[row], 0), stop)
        end = stop
        while low < end:
            middle = (low + end) // 2
            if np.uint64(values[middle]) < source:
                low = middle + 1
            else:
                end = middle
        if low == stop or np.uint64(values[low]) != source:
            keys[kept] = keys[i]
            kept += 1
    return kept


@inline
def _is_before(dst: Any, src: Any, wanted_dst: Any, wanted_src: Any) -> bool:
    """Whether a pair stands before another one in tile order."""
    shift = np.uint64(RANGE_BITS)
    d, s = np.uint64(dst), np.uint64(src)
    if s >> shift != wanted_src >> shift:
        return bool(s >> shift < wanted_src >> shift)
    return bool(d < wanted_dst or (d == wanted_dst and s < wanted_src))


@kernel
def drop_known_pairs(
    keys: NDArray[np.uint64], source_bits: int, first_row: int, dst: NDArray[Any], src: NDArray[Any]
) -> int:
    """Move keys that are none of the pairs to the front and return how many there are.

    Row ``r`` of a key is node ``first_row + r``; the pairs are in tile order.
    """
    high = np.uint64(source_bits)
    mask = (np.uint64(1) << high) - np.uint64(1)
    kept = 0
    for i in range(keys.size):
        node = np.uint64(first_row) + (keys[i] >> high)
        source = keys[i] & mask
        low, end = 0, src.size
        while low < end:
            middle = (low + end) // 2
            if _is_before(dst[middle], src[middle], node, source):
                low = middle + 1
            else:
                end = middle
        if low == src.size or np.uint64(dst[low]) != node or np.uint64(src[low]) != source:
            keys[kept] = keys[i]
            kept += 1
    return kept


@kernel
def to_tile_order(keys: NDArray[np.uint64], source_bits: int, first_row: int, row_bits: int) -> None:
    """Turn each key into its key in tile order; row ``r`` of a key is row ``first_row + r`` of the block."""
    high = np.uint64(source_bits)
    mask = (np.uint64(1) << high) - np.uint64(1)
    shift = np.uint64(RANGE_BITS)
    low = (np.uint64(1) << shift) - np.uint64(1)
    place = np.uint64(row_bits) + shift
    for i in range(keys.size):
        row = np.uint64(first_row) + (keys[i] >> high)
        source = keys[i] & mask
        keys[i] = (source >> shift) << place | row << shift | (source & low)


@kernel
def split_tile_keys(
    keys: NDArray[np.uint64], row_bits: int, first_node: int, dst: NDArray[Any], src: NDArray[Any]
) -> None:
    """Both ends of the edges of keys in tile order; row 0 of their block is node ``first_node``."""
    shift = np.uint64(RANGE_BITS)
    low = (np.uint64(1) << shift) - np.uint64(1)
    place = np.uint64(row_bits) + shift
    rows = (np.uint64(1) << np.uint64(row_bits)) - np.uint64(1)
    for i in range(keys.size):
        dst[i] = np.uint64(first_node) + (keys[i] >> shift & rows)
        src[i] = (keys[i] >> place) << shift | (keys[i] & low)
