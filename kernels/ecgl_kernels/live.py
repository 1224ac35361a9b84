"""Edges of which no end was dropped, of rows and of pairs.

    edge src -> dst stays    iff    neither bit src nor bit dst is set

``bits`` has one bit a node, the lowest of a byte first: an eighth of a byte a node, so that look-ups of the sources of
a hundred million nodes stay near the cache. Rows keep their number and their order; a dropped row becomes empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel

Bits = NDArray[np.uint8]


@inline
def _is_dropped(bits: Bits, node: Any) -> bool:
    return bool((bits[node >> 3] >> np.uint8(node & 7)) & 1)


@kernel
def count_live(offsets: NDArray[np.int64], sources: NDArray[Any], first_row: int, bits: Bits) -> int:
    """Edges of a block that stay; its rows are nodes from ``first_row`` on."""
    live = 0
    for row in range(offsets.size - 1):
        if not _is_dropped(bits, first_row + row):
            for i in range(offsets[row], offsets[row + 1]):
                live += not _is_dropped(bits, np.int64(sources[i]))
    return live


@kernel
def copy_live(
    offsets: NDArray[np.int64],
    sources: NDArray[Any],
    first_row: int,
    bits: Bits,
    out_offsets: NDArray[np.int64],
    out_sources: NDArray[Any],
) -> None:
    """Write the rows of a block without the edges that go; ``out_sources`` has room for exactly those that stay."""
    live = 0
    out_offsets[0] = 0
    for row in range(offsets.size - 1):
        if not _is_dropped(bits, first_row + row):
            for i in range(offsets[row], offsets[row + 1]):
                source = np.int64(sources[i])
                if not _is_dropped(bits, source):
                    out_sources[live] = sources[i]
                    live += 1
        out_offsets[row + 1] = live


@kernel
def find_live_pairs(dst: NDArray[Any], src: NDArray[Any], bits: Bits, is_live: NDArray[np.bool_]) -> int:
    """Say of every pair whether it stays; return how many do."""
    live = 0
    for i in range(dst.size):
        is_live[i] = not (_is_dropped(bits, np.int64(dst[i])) or _is_dropped(bits, np.int64(src[i])))
        live += is_live[i]
    return live


@kernel
def find_dropped_end(src: NDArray[Any], dst: NDArray[Any], bits: Bits) -> int:
    """First edge with a dropped end, or -1; ids that no node has are somebody else's to find."""
    limit = np.uint64(bits.size) * np.uint64(8)
    for i in range(src.size):
        if src[i] >= 0 and np.uint64(src[i]) < limit and _is_dropped(bits, np.int64(src[i])):
            return i
        if dst[i] >= 0 and np.uint64(dst[i]) < limit and _is_dropped(bits, np.int64(dst[i])):
            return i
    return -1
