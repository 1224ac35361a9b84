"""The attribute vector of sparse features, whose C may be far too large to hold at once: 607 MB for 8,710 columns.

Only the lower triangle of C is kept, in float64, and only as many of its rows (a strip) as the budget allows. Each
strip takes two passes over the features, one to sum and one to evaluate; all fits one strip where memory allows, and 16
strips, 32 passes, are the most. Every place is summed in the order of the features' rows, and a row's values are added
strip after strip, so strips, blocks and threads change no bit of the result.
Memory: 16 N (exponents, totals) + 8 K + the strip, between 1/16 and all of 4 K (K + 1) bytes. Files are mapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import Workers
from ecgl_scale.engine.place import make_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.rounds import make_rounds
from ecgl_scale.rank.attribute_dense import (
    MAX_EXPONENT,
    RESERVE_BYTES,
    Vector,
    num_dropped_rows,
    weights_underflow,
)
from ecgl_scale.rank.attribute_strips import (
    RANGES_PER_THREAD,
    StripDone,
    StripPlaces,
    StripSumsWork,
    StripValuesWork,
    cut_triangle,
    places_before,
    row_ranges,
    sparse_features,
)
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.rank.sizes import FeatureSizes, Need
from ecgl_scale.units import format_bytes

MAX_STRIPS = 16


def plan_sparse(sizes: FeatureSizes) -> Need:
    """Memory of the sparse passes on top of what the process holds, with the smallest strip and with all in one."""
    whole = 8 * places_before(sizes.num_columns)
    fixed = 16 * sizes.num_rows + 8 * sizes.num_columns + RESERVE_BYTES
    # The longest row on top, as a strip ends before the row that does not fit.
    return Need(fixed + min(-(-whole // MAX_STRIPS) + 8 * sizes.num_columns, whole), fixed + whole)


class SparsePasses:
    """The passes over sparse rows: two for each strip."""

    def __init__(
        self, source: FeatureSource, gamma: float, resources: Resources, *, strip_bytes: int | None = None
    ) -> None:
        """Strips are as large as the budget allows, unless told; more than ``MAX_STRIPS`` are refused."""
        sizes = FeatureSizes.of(source.features)
        if strip_bytes is None:
            need = plan_sparse(sizes)
            fixed = need.most - 8 * places_before(sizes.num_columns)
            resources.require(
                need.least,
                stage="the attribute vector",
                formula=f"16 bytes for each of {sizes.num_rows:,} rows "
                f"+ {format_bytes(need.least - fixed)} for a strip of {sizes.num_columns:,}^2 sums",
            )
            strip_bytes = min(resources.room_bytes, need.most) - fixed
        cuts = cut_triangle(0, sizes.num_columns, max_places=strip_bytes // 8)
        self.strips = [Block(number, first, last) for number, (first, last) in enumerate(cuts)]
        self.num_passes = 2 * len(self.strips)
        self._source, self._features = source, sparse_features(source)
        self._gamma = gamma
        self._resources = resources
        self._num_rows = sizes.num_rows

    def run(self, *, on_rows: Callable[[int], None]) -> Vector:
        """Run all passes and return r before it is divided by its sum; ``on_rows`` gets the rows done, of all."""
        resources, num_rows = self._resources, self._num_rows
        shares_memory = resources.executor.shares_memory
        strips, passes = StripPlaces.make(resources, self.strips), itertools.count(0, num_rows)
        stored = [*(block.start for block in self._features.blocks()), num_rows]
        exponents = make_place(resources, "attributes/exponents", stored, "float64")
        sums = StripSumsWork(self._source, self._gamma, exponents, strips, resources.threads)
        with resources.executor.open(sums, resources) as summing:
            # In memory one strip takes the room of another; in files all have room, and are summed at once.
            self._run_sums(sums, summing, self.strips[:1] if shares_memory else self.strips, passes, on_rows)
            ranges = row_ranges(self._features, resources.threads * RANGES_PER_THREAD)
            cuts = [*(block.start for block in ranges), num_rows]
            totals = make_rounds(resources, "attributes/totals", cuts, "float64", in_memory=1)
            weights = exponents.read(0, num_rows)
            factors = self._factors(weights, totals.at(0).room(0, num_rows))
            values = StripValuesWork(self._source, strips, totals)
            with resources.executor.open(values, resources) as evaluating:
                for strip in self.strips:
                    if strip.index and shares_memory:
                        self._run_sums(sums, summing, [strip], passes, on_rows)
                    given = {"strip": strip.index, "first": strip.start, "last": strip.stop, "factors": factors}
                    done = next(passes)
                    for block, _ in evaluating.run(ranges, given):
                        on_rows(done + block.stop)
                    totals.forget(strip.index)
        # r / a = w (1 + x.b/a + x^T (C/a) x), relative to the heaviest row, in place.
        found = totals.at(len(self.strips)).read(0, num_rows)
        found += 1.0
        np.subtract(weights.min(), weights, out=weights)
        found *= np.exp(weights, out=weights)
        return found

    def _run_sums(
        self,
        work: StripSumsWork,
        workers: Workers[StripDone],
        strips: list[Block],
        passes: Iterator[int],
        on_rows: Callable[[int], None],
    ) -> None:
        done, *_ = [next(passes) for _ in strips]
        work.on_rows = lambda rows: on_rows(done + rows)
        for strip, _ in workers.run(strips):
            on_rows(done + (strip.index - strips[0].index + 1) * self._num_rows)

    def _factors(self, exponents: Vector, scratch: Vector) -> tuple[float, float]:
        """Return by what b and C are multiplied, a share of the sum of all weights; ``scratch`` is left as zeros."""
        if exponents.min() > MAX_EXPONENT:
            raise weights_underflow(self._gamma)
        np.negative(exponents, out=scratch)
        weight_sum = float(np.exp(scratch, out=scratch).sum()) - num_dropped_rows(self._source)
        scratch[:] = 0.0
        if weight_sum <= 0.0:
            raise weights_underflow(self._gamma)
        return 2.0 * self._gamma / weight_sum, 2.0 * self._gamma**2 / weight_sum
