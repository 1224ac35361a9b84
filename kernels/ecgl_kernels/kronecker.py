"""Edges of the Graph500 Kronecker graph: every edge is a pure function of its number.

    for every bit of the labels, (source bit, target bit) = (0,0) (0,1) (1,0) (1,1) with A B C D = .57 .19 .19 .05

Five bits are drawn at once: their 1024 outcomes have fixed odds, so Walker's alias table (4 KiB, stays in L1) gives one
for 32 random bits with one look-up and no branch, and a 64-bit draw gives ten bits of both ends: three draws an
edge at scale 25 where one a bit would need 25. Surplus bits are dropped, which leaves the others as they are.
The draws are counter-based (see random.py), so that blocks of any size made by any thread are the same edges.
A keyed bijection then hides the order of the labels, as the Graph500 specification asks, without a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels.random import mix, permutation_key, scramble, substream

QUADRANTS = (0.57, 0.19, 0.19, 0.05)
LEVELS = 5
OUTCOMES = 4**LEVELS
FRACTION_BITS = 32 - 2 * LEVELS
OUTCOME_MASK = np.uint64(OUTCOMES - 1)
HALF_MASK = np.uint64(2**LEVELS - 1)
WORD_MASK = np.uint64(2**32 - 1)
TILE = 256


def outcome_odds() -> list[float]:
    """Return the odds of each outcome, five source bits above five target bits."""
    odds = []
    for outcome in range(OUTCOMES):
        source, target = divmod(outcome, 2**LEVELS)
        odd = 1.0
        for bit in range(LEVELS):
            odd *= QUADRANTS[2 * (source >> bit & 1) + (target >> bit & 1)]
        odds.append(odd)
    return odds


def alias_table() -> NDArray[np.uint32]:
    """Build the table of Walker and Vose in whole numbers: threshold (22 bits), then the outcome at or above it."""
    full = 1 << FRACTION_BITS
    weights = [round(odd * OUTCOMES * full) for odd in outcome_odds()]
    weights[0] += OUTCOMES * full - sum(weights)
    table = np.empty(OUTCOMES, np.uint32)
    small = [outcome for outcome in range(OUTCOMES) if weights[outcome] < full]
    large = [outcome for outcome in range(OUTCOMES) if weights[outcome] >= full]
    while small:
        outcome, alias = small.pop(), large[-1]
        table[outcome] = weights[outcome] << (2 * LEVELS) | alias
        weights[alias] -= full - weights[outcome]
        if weights[alias] < full:
            small.append(large.pop())
    for outcome in large:
        # a threshold of 2^22 has no room: whichever way the draw falls, the answer is the outcome itself
        table[outcome] = outcome
    return table


def kronecker_key(scale: int, seed: int) -> NDArray[np.uint64]:
    """Describe the bijection that hides the labels."""
    return permutation_key(1 << scale, substream(seed, 1))


@inline
def outcome_of(word: np.uint64, table: NDArray[np.uint32]) -> np.uint64:
    """Turn 32 random bits into an outcome."""
    column = word & OUTCOME_MASK
    entry = np.uint64(table[column])
    return column if (word >> np.uint64(2 * LEVELS)) < (entry >> np.uint64(2 * LEVELS)) else entry & OUTCOME_MASK


@kernel
def kronecker_edges(
    first_edge: int,
    seed: np.uint64,
    scale: int,
    table: NDArray[np.uint32],
    key: NDArray[np.uint64],
    src: NDArray[Any],
    dst: NDArray[Any],
) -> None:
    """Write the edges number ``first_edge`` and on; with an empty ``key`` the labels stay in their order."""
    num_draws = np.uint64((scale + 2 * LEVELS - 1) // (2 * LEVELS))
    mask = (np.uint64(1) << np.uint64(scale)) - np.uint64(1)
    levels = np.uint64(LEVELS)
    # draw by draw over a small tile: independent iterations overlap, which is a quarter faster than edge by edge
    sources = np.empty(TILE, np.uint64)
    targets = np.empty(TILE, np.uint64)
    for first in range(0, src.size, TILE):
        count = min(TILE, src.size - first)
        sources[:] = np.uint64(0)
        targets[:] = np.uint64(0)
        for draw in range(num_draws):
            counter = np.uint64(first_edge + first) * num_draws + np.uint64(draw)
            for i in range(count):
                bits = mix(seed, counter + np.uint64(i) * num_draws)
                one = outcome_of(bits & WORD_MASK, table)
                two = outcome_of(bits >> np.uint64(32), table)
                sources[i] = (((sources[i] << levels) | (one >> levels)) << levels) | (two >> levels)
                targets[i] = (((targets[i] << levels) | (one & HALF_MASK)) << levels) | (two & HALF_MASK)
        if key.size > 0:
            for i in range(count):
                src[first + i] = scramble(sources[i] & mask, key)
                dst[first + i] = scramble(targets[i] & mask, key)
        else:
            for i in range(count):
                src[first + i] = sources[i] & mask
                dst[first + i] = targets[i] & mask
