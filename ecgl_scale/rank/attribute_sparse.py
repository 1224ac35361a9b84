"""The attribute vector of sparse features, whose C may be far too large to hold at once: 607 MB for 8,710 columns.

Only the lower triangle of C is kept, in float64, and only as many of its rows (a strip) as the budget allows. Each
strip takes two passes over the features, one to sum and one to evaluate; all fits one strip where memory allows, and 16
strips, 32 passes, are the most. Threads share a strip by ranges of its rows and every place is summed in the order of
the features' rows, so strips, blocks and threads change no bit of the result.
Memory: 16 N (exponents, totals) + 8 K + the strip, between 1/16 and all of 4 K (K + 1) bytes. Files are mapped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ecgl_kernels.attribute import accumulate_csr, evaluate_csr, weigh_csr
from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.engine.resources import Resources
from ecgl_scale.rank.attribute_dense import MAX_EXPONENT, RESERVE_BYTES, Vector, weights_underflow
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import format_bytes

MAX_STRIPS = 16
RANGES_PER_THREAD = 4
"""Common words make some ranges heavy: with several a thread, whoever is done takes the next."""


class SparsePasses:
    """The passes over sparse rows: two for each strip."""

    def __init__(self, features: SparseFeatures, gamma: float, *, strip_bytes: int, threads: int) -> None:
        self._features = features
        self._gamma = gamma
        self._threads = threads
        self.strips = cut_triangle(0, features.num_features, max_places=strip_bytes // 8)
        self.num_passes = 2 * len(self.strips)

    @classmethod
    def plan(cls, features: SparseFeatures, gamma: float, resources: Resources) -> SparsePasses:
        """Strips as large as the budget allows; or a refusal, where more than ``MAX_STRIPS`` would be needed."""
        whole = 8 * places_before(features.num_features)
        # The longest row on top, as a strip ends before the row that does not fit.
        least = min(-(-whole // MAX_STRIPS) + 8 * features.num_features, whole)
        fixed = 16 * features.num_rows + 8 * features.num_features + RESERVE_BYTES
        resources.require(
            fixed + least,
            stage="the attribute vector",
            formula=f"16 bytes for each of {features.num_rows:,} rows "
            f"+ {format_bytes(least)} for a strip of {features.num_features:,}^2 sums",
        )
        return cls(features, gamma, strip_bytes=min(resources.room_bytes - fixed, whole), threads=resources.threads)

    def run(self, *, on_rows: Callable[[int], None]) -> Vector:
        """All passes: r before it is divided by its sum; ``on_rows`` gets the rows done so far, of all passes."""
        num_rows = self._features.num_rows
        exponents, totals = np.empty(num_rows, np.float64), np.empty(num_rows, np.float64)
        # In huge pages: touching a triangle for the first time in small ones takes longer than summing a small task.
        memory = aligned_bytes(8 * max(_num_places(*strip) for strip in self.strips)).view(np.float64)
        weight_sum, done = 0.0, 0
        with ThreadPoolExecutor(self._threads, thread_name_prefix="attribute") as pool:
            for first, last in self.strips:
                linear, strip = np.zeros(last - first, np.float64), memory[: _num_places(first, last)]
                if first:
                    strip[:] = 0.0  # new memory is zero
                for block, rows in self._features.stream():
                    here = exponents[block.start : block.stop]
                    if first == 0:
                        weigh_csr(rows.indptr, rows.values, self._gamma, here)
                    self._accumulate(pool, rows, here, (first, last), linear, strip)
                    done += block.num_rows
                    on_rows(done)
                if first == 0:
                    weight_sum = self._sum_weights(exponents, totals)
                    totals[:] = 0.0
                factors = (2.0 * self._gamma / weight_sum, 2.0 * self._gamma**2 / weight_sum)
                for block, rows in self._features.stream():
                    self._evaluate(pool, rows, (first, last), factors, linear, strip, totals[block.start : block.stop])
                    done += block.num_rows
                    on_rows(done)
        # r / a = w (1 + x.b/a + x^T (C/a) x), relative to the heaviest row, in place.
        totals += 1.0
        np.subtract(exponents.min(), exponents, out=exponents)
        totals *= np.exp(exponents, out=exponents)
        return totals

    def _sum_weights(self, exponents: Vector, scratch: Vector) -> float:
        if exponents.min() > MAX_EXPONENT:
            raise weights_underflow(self._gamma)
        np.negative(exponents, out=scratch)
        return float(np.exp(scratch, out=scratch).sum())

    def _accumulate(
        self,
        pool: ThreadPoolExecutor,
        rows: CsrBlock,
        exponents: Vector,
        columns: tuple[int, int],
        linear: Vector,
        strip: Vector,
    ) -> None:
        first, last = columns
        pieces = self._threads * RANGES_PER_THREAD if self._threads > 1 else 1
        share = -(-_num_places(first, last) // pieces) + last
        waiting = []
        for start, stop in cut_triangle(first, last, max_places=share):
            part = strip[_num_places(first, start) : _num_places(first, stop)]
            arguments = (exponents, start, stop, linear[start - first : stop - first], part)
            waiting.append(pool.submit(accumulate_csr, rows.indptr, rows.indices, rows.values, *arguments))
        for piece in waiting:
            piece.result()

    def _evaluate(
        self,
        pool: ThreadPoolExecutor,
        rows: CsrBlock,
        columns: tuple[int, int],
        factors: tuple[float, float],
        linear: Vector,
        strip: Vector,
        totals: Vector,
    ) -> None:
        # Rows with equally many values to each thread: offsets are the running count of values.
        wanted = np.linspace(0, rows.indptr[-1], self._threads * RANGES_PER_THREAD + 1)
        cuts = np.searchsorted(rows.indptr, wanted)
        cuts[0], cuts[-1] = 0, totals.size
        waiting = [
            pool.submit(
                evaluate_csr, rows.indptr[start : stop + 1], rows.indices, rows.values, columns, factors, linear, strip,
                totals[start:stop],
            )
            for start, stop in itertools.pairwise(cuts)
        ]  # fmt: skip
        for piece in waiting:
            piece.result()


def places_before(row: int) -> int:
    """Places of the lower triangle in the rows above ``row``."""
    return row * (row + 1) // 2


def _num_places(first: int, last: int) -> int:
    return places_before(last) - places_before(first)


def cut_triangle(first: int, last: int, *, max_places: int) -> list[tuple[int, int]]:
    """Cut the triangle's rows ``first`` to ``last`` into runs of at most ``max_places`` places, or of one row."""
    runs = []
    while first < last:
        # The largest stop with stop (stop + 1) / 2 <= limit.
        limit = places_before(first) + max_places
        stop = min(max((math.isqrt(8 * limit + 1) - 1) // 2, first + 1), last)
        runs.append((first, stop))
        first = stop
    return runs
