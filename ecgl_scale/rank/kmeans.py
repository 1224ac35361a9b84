"""K-means in every group, with as many centres as rows are wanted, and the row nearest to each centre.

Centres begin as k-means++ draws them (Arthur and Vassilvitskii 2007), by a generator of the group's own; a few passes
of Lloyd's move them, but for a centre without rows; then each in turn takes the nearest row that is still free.
How many rows a centre stands for is not kept: the bank has no weights.
Cost: 2 k passes of one dot product a row for the largest quota k, and ``MOVES`` passes of k products a row.
Memory: 24 bytes for each column of each wanted row, 32 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.rank.grouped_rows import GroupedRows

MOVES = 5
"""Passes that move the centres."""

Ids = NDArray[np.int64]
Vectors = NDArray[np.float64]
OnPass = Callable[[int], None]


def num_passes(largest_quota: int) -> int:
    """Passes over the rows: draws, moves, choices."""
    return 2 * largest_quota + MOVES if largest_quota else 0


def cluster(
    grouped: GroupedRows, seeds: Sequence[tuple[int, ...]], *, on_pass: OnPass = lambda _: None
) -> NDArray[np.int64]:
    """Positions of the rows that are taken; each group draws by its own of the ``seeds``."""
    quotas = grouped.quotas
    turns = int(quotas.max(initial=0))
    offsets = np.concatenate([[0], np.cumsum(quotas)]).astype(np.int64)
    centres = _draw_centres(grouped, offsets, seeds, on_pass)
    for move in range(MOVES if turns else 0):
        nearest = grouped.nearest(centres, offsets)
        counts = np.bincount(nearest[nearest >= 0], minlength=len(centres))
        sums = grouped.add_up(nearest, len(centres))
        has_rows = counts > 0
        np.divide(sums, counts[:, None], out=centres, where=has_rows[:, None])
        on_pass(turns + move + 1)
    taken = [np.empty(0, np.int64)]
    for turn in range(turns):
        is_open = turn < quotas
        best = grouped.take_best(_of_turn(centres, offsets, turn, is_open), is_open.astype(np.float64))
        taken.append(best[best >= 0])
        on_pass(turns + MOVES + turn + 1)
    return np.concatenate(taken)


def _draw_centres(grouped: GroupedRows, offsets: Ids, seeds: Sequence[tuple[int, ...]], on_pass: OnPass) -> Vectors:
    """The first of a group is any of its rows; each next is drawn by the squared distance to those before."""
    centres = np.empty((int(offsets[-1]), grouped.rows.shape[1]))
    draws = [np.random.default_rng(seed).random(quota) for seed, quota in zip(seeds, grouped.quotas, strict=True)]
    distances, members = np.full(len(grouped.rows), np.inf), grouped.members()
    for turn in range(int(grouped.quotas.max(initial=0))):
        is_open = turn < grouped.quotas
        for group in np.flatnonzero(is_open).tolist():
            own = members[group]
            row = own[_draw(distances[own] if turn else np.ones(own.size), draws[group][turn])]
            centres[offsets[group] + turn] = grouped.rows[row]
        grouped.lower(_of_turn(centres, offsets, turn, is_open), distances)
        on_pass(turn + 1)
    return centres


def _of_turn(centres: Vectors, offsets: Ids, turn: int, is_open: NDArray[np.bool_]) -> Vectors:
    """A centre for each group: that of this turn, or its last one where it has no more."""
    return centres[np.where(is_open, offsets[:-1] + turn, offsets[1:] - 1)]


def _draw(weights: NDArray[np.float64], share: float) -> int:
    """A position by weight; all alike where all weights are 0, as where every row is a centre already."""
    cumulative = np.cumsum(weights)
    if cumulative[-1] == 0.0:
        return int(share * weights.size)
    return min(int(np.searchsorted(cumulative, share * cumulative[-1], side="right")), weights.size - 1)
