"""Sets of nodes, a bit each, and the place of a node among those of a set.

    place(u) = members of the words before that of u + bits below that of u in its own word

A graph's nodes take a bit and a half each this way, where marks and places would take forty; and a set lists its nodes
in ascending order without being sorted. Every id must be below the number of nodes: callers have checked them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._bits import lowest_bit
from ecgl_kernels._jit import inline, kernel

Words = NDArray[np.uint64]
Counts = NDArray[np.int64]


@inline
def _count_bits(word: Any) -> Any:
    """Add neighbouring groups of 1, 2 and 4 bits, and the eight bytes by one product."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def add_nodes(nodes: NDArray[Any], words: Words) -> None:
    """Put nodes, which may repeat, into a set."""
    for i in range(nodes.size):
        node = np.uint64(nodes[i])
        words[node >> np.uint64(6)] |= np.uint64(1) << (node & np.uint64(63))


@kernel
def count_nodes(words: Words, before: NDArray[np.uint32]) -> int:
    """Members of all words before each; returns how many there are in all."""
    total = 0
    for i in range(words.size):
        before[i] = total
        total += _count_bits(words[i])
    return total


@kernel
def list_nodes(words: Words, known: Words, out: NDArray[np.int64]) -> int:
    """Write the nodes of a set that another does not know, ascending; returns their number, which may exceed ``out``.

    Nothing is written past the end of ``out``: with an empty one nodes are only counted.
    """
    found = 0
    for i in range(words.size):
        left = words[i] & ~known[i]
        if out.size == 0:
            found += _count_bits(left)
            continue
        while left != np.uint64(0):
            if found < out.size:
                out[found] = i * 64 + lowest_bit(left)
            found += 1
            left &= left - np.uint64(1)
    return found


@kernel
def find_places(
    nodes: NDArray[Any], words: Words, before: NDArray[np.uint32], order: NDArray[np.int32], out: NDArray[np.int32]
) -> None:
    """``order`` at the place of each node, all of which the set has."""
    for i in range(nodes.size):
        node = np.uint64(nodes[i])
        word, bit = node >> np.uint64(6), node & np.uint64(63)
        below = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
        out[i] = order[np.int64(before[word]) + _count_bits(below)]


@kernel
def mark_receivers(indptr: Counts, indices: NDArray[Any], first_row: int, sources: Words, words: Words) -> None:
    """Put every row with an edge from a node of ``sources`` into a set; the first row is node ``first_row``."""
    for row in range(indptr.size - 1):
        for p in range(indptr[row], indptr[row + 1]):
            source = np.uint64(indices[p])
            if sources[source >> np.uint64(6)] >> (source & np.uint64(63)) & np.uint64(1):
                node = np.uint64(first_row + row)
                words[node >> np.uint64(6)] |= np.uint64(1) << (node & np.uint64(63))
                break
