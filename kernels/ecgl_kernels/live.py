"""Edges of which no end was dropped, of rows and of pairs.

    edge src -> dst stays    iff    neither bit src nor bit dst is set

``bits`` has one bit a node, the lowest of a byte first: an eighth of a byte a node, so that look-ups of the sources of
a hundred million nodes stay near the cache. Rows keep their place and their order; a dropped row becomes empty.
``nodes`` says which node each row is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel

Bits = NDArray[np.uint8]
Ints = NDArray[np.int64]


@inline
def _is_dropped(bits: Bits, node: Any) -> bool:
    return bool((bits[node >> 3] >> np.uint8(node & 7)) & 1)


@kernel
def count_live(offsets: Ints, sources: NDArray[Any], nodes: Ints, bits: Bits, counts: Ints) -> None:
    """Put the number of edges that stay of every row into ``counts``."""
    for row in range(nodes.size):
        live = 0
        if not _is_dropped(bits, nodes[row]):
            for i in range(offsets[row], offsets[row + 1]):
                live += not _is_dropped(bits, np.int64(sources[i]))
        counts[row] = live


@kernel
def copy_live(
    offsets: Ints, sources: NDArray[Any], nodes: Ints, bits: Bits, out_offsets: Ints, out_sources: NDArray[Any]
) -> int:
    """Write the rows without the edges that go, one after the other; return how many edges stay."""
    live = 0
    out_offsets[0] = 0
    for row in range(nodes.size):
        if not _is_dropped(bits, nodes[row]):
            for i in range(offsets[row], offsets[row + 1]):
                if not _is_dropped(bits, np.int64(sources[i])):
                    out_sources[live] = sources[i]
                    live += 1
        out_offsets[row + 1] = live
    return live


@kernel
def count_live_pairs(dst: NDArray[Any], src: NDArray[Any], bits: Bits) -> int:
    """Pairs that stay."""
    live = 0
    for i in range(dst.size):
        live += not (_is_dropped(bits, np.int64(dst[i])) or _is_dropped(bits, np.int64(src[i])))
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
