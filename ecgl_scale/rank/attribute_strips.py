"""The sparse passes of the attribute vector as work: the sums of a strip of C, and what a strip adds to some rows.

Row k of the lower triangle of C holds C[k, 0..k]; a strip is some of these rows, and b of the same columns. A strip is
summed by all threads of a worker, each with ranges of its rows, while the features stream by once. Evaluating it is
work on ranges of the features' rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.attribute import accumulate_csr, evaluate_csr, weigh_csr
from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import Place, make_place, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.rounds import Rounds, open_rounds
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.source import CsrBlock

RANGES_PER_THREAD = 4
"""Common words make some ranges heavy: with several a thread, whoever is done takes the next."""

Vector = NDArray[np.float64]


def places_before(row: int) -> int:
    """Count the places of the lower triangle in the rows above ``row``."""
    return row * (row + 1) // 2


def num_places(first: int, last: int) -> int:
    """Count the places of the rows ``first`` up to ``last``."""
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


class OneStrip:
    """A place in memory for the strip that is worked on; the next takes its room."""

    def __init__(self, num_values: int) -> None:
        # In huge pages: touching a triangle for the first time in small ones takes longer than summing a small task.
        self._memory: Vector = aligned_bytes(8 * num_values).view(np.float64)
        self._is_new = True

    def room(self, start: int, stop: int) -> Vector:
        """Return zeros, in place of the strip before."""
        rows = self._memory[: stop - start]
        if not self._is_new:
            rows[:] = 0.0  # new memory is zero
        self._is_new = False
        return rows

    def read(self, start: int, stop: int) -> Vector:
        """Return the strip that is there."""
        return self._memory[: stop - start]

    def write(self, start: int, rows: Vector) -> None:
        """Do nothing: the rows are in place."""

    def describe(self) -> Json:
        """Memory cannot be described: workers of other processes get files."""
        raise NotImplementedError


@dataclass(frozen=True)
class StripPlaces:
    """Where strips go: b by columns, C by places of its triangle."""

    linear: Place
    triangle: Place

    @classmethod
    def make(cls, resources: Resources, strips: Sequence[Block]) -> StripPlaces:
        """Make room for one strip in memory, or a file for each."""
        if resources.executor.shares_memory:
            widest = max(strip.num_rows for strip in strips)
            return cls(OneStrip(widest), OneStrip(max(num_places(strip.start, strip.stop) for strip in strips)))
        columns = [*(strip.start for strip in strips), strips[-1].stop]
        return cls(
            make_place(resources, "attributes/linear", columns, "float64"),
            make_place(resources, "attributes/triangle", [places_before(column) for column in columns], "float64"),
        )

    def read(self, first: int, last: int) -> tuple[Vector, Vector]:
        """Return the strip's parts of b and C."""
        return self.linear.read(first, last), self.triangle.read(places_before(first), places_before(last))

    def describe(self) -> Json:
        """Say where both places are."""
        return {"linear": self.linear.describe(), "triangle": self.triangle.describe()}

    @classmethod
    def open(cls, description: Json) -> StripPlaces:
        """Find the strips that another process has described."""
        return cls(open_place(description["linear"]), open_place(description["triangle"]))


@dataclass(frozen=True)
class StripDone:
    """A record that says no more than that a block is done."""

    num_rows: int


def sparse_features(source: FeatureSource) -> SparseFeatures:
    """Return the features, which the caller knows to be sparse."""
    return cast("SparseFeatures", source.features)


def row_ranges(features: SparseFeatures, per_block: int) -> list[Block]:
    """Cut the rows of each stored block into ranges with about equally many values."""
    ranges: list[Block] = []
    for stored in features.blocks():
        indptr = features.read(stored).indptr
        cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], per_block + 1))  # offsets count the values
        cuts[0], cuts[-1] = 0, stored.num_rows
        for first, stop in pairwise(np.unique(cuts).tolist()):
            ranges.append(Block(len(ranges), stored.start + first, stored.start + stop))
    return ranges


class StripSumsWork(Work[None, StripDone]):
    """A block is a strip: its part of b and C over all rows. The first also leaves gamma |x|^2 of every row."""

    name: ClassVar[str] = "rank.attribute.strip_sums"
    record: ClassVar[type[Any]] = StripDone
    uses_all_threads: ClassVar[bool] = True

    def __init__(
        self,
        source: FeatureSource,
        gamma: float,
        exponents: Place,
        strips: StripPlaces,
        threads: int,
    ) -> None:
        self.on_rows: Callable[[int], None] = lambda _: None
        """Is called with the rows done so far of a strip, where the caller shares this process."""
        self._source, self._features = source, sparse_features(source)
        self._gamma = gamma
        self._exponents = exponents
        self._strips = strips
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="attribute")

    def describe(self) -> Json:
        """Say where features, exponents and strips are."""
        return {
            "features": self._source.description,
            "gamma": self._gamma,
            "exponents": self._exponents.describe(),
            "strips": self._strips.describe(),
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> StripSumsWork:
        """Open the work on a worker that has only files."""
        return cls(
            FeatureSource.open(description["features"]),
            description["gamma"],
            open_place(description["exponents"]),
            StripPlaces.open(description["strips"]),
            resources.threads,
        )

    def run(self, block: Block, given: Json, scratch: None) -> StripDone:
        """Sum one strip in one pass over all features."""
        del given, scratch
        first, last = block.start, block.stop
        linear = self._strips.linear.room(first, last)
        strip = self._strips.triangle.room(places_before(first), places_before(last))
        for rows_block, rows in self._features.stream():
            exponents = self._exponents.room(rows_block.start, rows_block.stop)
            weigh_csr(rows.indptr, rows.values, self._gamma, exponents)
            self._accumulate(rows, exponents, (first, last), linear, strip)
            if first == 0:
                self._exponents.write(rows_block.start, exponents)
            self.on_rows(rows_block.stop)
        self._strips.linear.write(first, linear)
        self._strips.triangle.write(places_before(first), strip)
        return StripDone(self._features.num_rows)

    def _accumulate(
        self, rows: CsrBlock, exponents: Vector, columns: tuple[int, int], linear: Vector, strip: Vector
    ) -> None:
        first, last = columns
        pieces = self._threads * RANGES_PER_THREAD if self._threads > 1 else 1
        share = -(-num_places(first, last) // pieces) + last
        waiting = []
        for start, stop in cut_triangle(first, last, max_places=share):
            part = strip[num_places(first, start) : num_places(first, stop)]
            arguments = (exponents, start, stop, linear[start - first : stop - first], part)
            waiting.append(self._pool.submit(accumulate_csr, rows.indptr, rows.indices, rows.values, *arguments))
        for piece in waiting:
            piece.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class StripValuesWork(Work[None, StripDone]):
    """A block is a range of rows within a stored block, ``given`` a strip: what it adds to their values.

    ``given`` has the number of the ``strip``, its ``first`` row of C and the ``last``, and the ``factors`` of b and C.
    Round n of the totals has n strips in it.
    """

    name: ClassVar[str] = "rank.attribute.strip_values"
    record: ClassVar[type[Any]] = StripDone
    has_small_records: ClassVar[bool] = True

    def __init__(self, source: FeatureSource, strips: StripPlaces, totals: Rounds) -> None:
        self._source, self._features = source, sparse_features(source)
        self._strips = strips
        self._totals = totals
        self._mapped: dict[int, CsrBlock] = {}
        self._lock = threading.Lock()
        self._strip_held = -1
        self._held: tuple[Vector, Vector] = (np.empty(0), np.empty(0))

    def describe(self) -> Json:
        """Say where features, strips and totals are."""
        return {
            "features": self._source.description,
            "strips": self._strips.describe(),
            "totals": self._totals.describe(),
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> StripValuesWork:
        """Open the work on a worker that has only files."""
        del resources
        source, strips = FeatureSource.open(description["features"]), StripPlaces.open(description["strips"])
        return cls(source, strips, open_rounds(description["totals"]))

    def run(self, block: Block, given: Json, scratch: None) -> StripDone:
        """Add a strip's share to the values of some rows."""
        del scratch
        number, columns = given["strip"], (given["first"], given["last"])
        factor_linear, factor_quadratic = given["factors"]
        linear, strip = self._hold(number, *columns)
        before = self._totals.at(number)
        totals = before.read(block.start, block.stop) if number else before.room(block.start, block.stop)
        stored = self._features.block_of(block.start)
        rows = self._rows_of(stored)
        indptr = rows.indptr[block.start - stored.start : block.stop - stored.start + 1]
        factors = (factor_linear, factor_quadratic)
        evaluate_csr(indptr, rows.indices, rows.values, columns, factors, linear, strip, totals)
        self._totals.at(number + 1).write(block.start, totals)
        return StripDone(block.num_rows)

    def _hold(self, number: int, first: int, last: int) -> tuple[Vector, Vector]:
        with self._lock:
            if self._strip_held != number:
                self._held = (np.empty(0), np.empty(0))  # first, or two strips would be there at once
                self._held, self._strip_held = self._strips.read(first, last), number
            return self._held

    def _rows_of(self, stored: Block) -> CsrBlock:
        if stored.index not in self._mapped:
            self._mapped[stored.index] = self._features.read(stored)
        return self._mapped[stored.index]
