"""Rows in groups, of each of which some are to be taken: what herding and k-means do to all rows at once.

A pass is one walk over the rows for all groups together, cut among threads. The rows are an array or a mapped file, and
are worked on where they are. Memory: 24 bytes a row besides, and vectors of a row's width.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.typical import add_to_groups, find_best, find_nearest, halve_squares, lower_distances
from ecgl_scale.engine.threads import run_parts

Ids = NDArray[np.int64]
Vector = NDArray[np.float64]
Vectors = NDArray[np.float64]


class GroupedRows:
    """Rows, the number of each row's group (below 0 for none), and how many of each group are wanted."""

    def __init__(self, rows: NDArray[np.float32], groups: Ids, quotas: Ids, *, threads: int = 1) -> None:
        self.rows = np.asarray(rows)  # kernels know plain arrays
        self.groups = groups
        self.quotas = quotas
        self._free = groups.copy()
        num_rows = len(self.rows)
        parts = max(min(threads, num_rows), 1)
        self._cuts = [num_rows * part // parts for part in range(parts + 1)]
        self._halves = np.empty(num_rows)
        run_parts(lambda start, stop: halve_squares(self.rows[start:stop], self._halves[start:stop]), self._cuts)

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return self.quotas.size

    @property
    def sizes(self) -> Vector:
        """Rows of each group."""
        return np.bincount(self.groups[self.groups >= 0], minlength=self.num_groups).astype(np.float64)

    def add_up(self, numbers: Ids, count: int) -> Vectors:
        """The sums of the rows that have the same number, in row order and float64; for numbers below ``count``."""
        sums = np.zeros((count, self.rows.shape[1]))
        add_to_groups(self.rows, numbers, sums)
        return sums

    def take_best(self, targets: Vectors, weights: Vector) -> Ids:
        """Take of each group the free row with the highest f.t - w |f|^2 / 2; -1 where the weight is 0."""
        scores = np.full((len(self._cuts) - 1, self.num_groups), -np.inf)
        found = np.full(scores.shape, -1, np.int64)

        def walk(start: int, stop: int) -> None:
            part = self._cuts.index(start)
            rows, free, halves = self.rows[start:stop], self._free[start:stop], self._halves[start:stop]
            scores[part] = find_best(rows, free, halves, targets, weights, found[part])
            found[part, found[part] >= 0] += start

        run_parts(walk, self._cuts)
        best: Ids = found[np.argmax(scores, axis=0), np.arange(self.num_groups)]  # the first of equals, as in a part
        self._free[best[best >= 0]] = -1
        return best

    def lower(self, centres: Vectors, distances: Vector) -> None:
        """Lower the squared distance of each row to that of its group's centre, where it is less."""
        cuts = self._cuts
        run_parts(lambda a, b: lower_distances(self.rows[a:b], self.groups[a:b], centres, distances[a:b]), cuts)

    def nearest(self, centres: Vectors, offsets: Ids) -> Ids:
        """The nearest centre of each row, among those of its group: from ``offsets[g]`` up to the next."""
        found = np.empty(len(self.rows), np.int64)
        halves = np.array([0.5 * np.square(centre).sum() for centre in centres])

        def walk(start: int, stop: int) -> None:
            rows, groups = self.rows[start:stop], self.groups[start:stop]
            find_nearest(rows, groups, centres, halves, offsets, found[start:stop])

        run_parts(walk, self._cuts)
        return found

    def members(self) -> list[Ids]:
        """The rows of each group."""
        order = np.argsort(self.groups, kind="stable")
        bounds = np.searchsorted(self.groups[order], np.arange(self.num_groups + 1))
        return [order[start:stop] for start, stop in pairwise(bounds)]
