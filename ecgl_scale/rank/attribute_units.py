"""The two dense passes of the attribute vector as work on units of rows: a few chunks, cut by the width alone.

The first pass leaves gamma |x|^2 of its rows and returns the sums of each chunk, which the driver adds up in order; the
second turns what the first left into values. Both read a unit chunk by chunk, as float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.attribute import evaluate_rows, weigh_rows
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import Place, make_place, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import one_blas_thread
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.rank.sizes import FeatureSizes
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.source import FloatArray
from ecgl_scale.units import MIB

CHUNK_ROWS = 4096
"""Long enough for BLAS to reach its speed, short enough for a chunk of 100 columns to stay in cache."""
UNIT_BYTES = 32 * MIB
"""Several chunks are a thread's at once: the store's own chunks end elsewhere, and are read whole at both ends."""
UNITS_AHEAD = 4
"""How far the system is asked to read ahead of the threads."""

Rows = NDArray[np.float32]
Vector = NDArray[np.float64]


def unit_rows(num_columns: int) -> int:
    """Count the rows of a unit: whole chunks, and the same for any budget and number of threads."""
    return CHUNK_ROWS * max(UNIT_BYTES // (CHUNK_ROWS * num_columns * 4), 1)


@dataclass(frozen=True)
class ChunkSums:
    """Sums of each chunk of a unit, with weights relative to the chunk's heaviest row."""

    least: Vector
    total: Vector
    linear: Vector
    quadratic: NDArray[np.float32]


@dataclass(frozen=True)
class Evaluated:
    """A record that says no more than that a unit is done."""

    num_rows: int


@dataclass(frozen=True)
class Sums:
    """What the first pass leaves for the second: b and C divided by a, and the least exponent of all rows."""

    linear: Vector
    quadratic: Vector
    least: float

    def put(self, resources: Resources) -> Json:
        """Write the sums to a file for workers that share no memory: the rows of C, and b as one more."""
        size = self.linear.size
        place = make_place(resources, "attributes/sums", [0, size + 1], "float64", size)
        place.write(0, np.vstack([self.quadratic, self.linear]))
        return {"place": place.describe(), "least": self.least}

    @classmethod
    def open(cls, description: Json) -> Sums:
        """Read the sums that another process has put there."""
        place = open_place(description["place"])
        rows = place.read(0, place.cuts[-1])
        return cls(rows[-1].copy(), rows[:-1], description["least"])


@dataclass(frozen=True)
class _Scratch:
    """A thread's own memory: what is read, the rows as float32 (both empty where not needed), what is made of them."""

    read: NDArray[np.uint8]
    rows: Rows
    made: Rows


Record = TypeVar("Record")


class _DenseWork(Work[_Scratch, Record]):
    """What both passes share: the features, read chunk by chunk."""

    def __init__(self, source: FeatureSource) -> None:
        self._source = source
        self._sizes = FeatureSizes.of(source.features)
        self._blas = ExitStack()

    def _with_one_blas_thread(self) -> Self:
        """Limit BLAS on a worker of another process; in this one the driver sees to it."""
        self._blas.enter_context(one_blas_thread())
        return self

    def close(self) -> None:
        """Give BLAS its threads back."""
        self._blas.close()

    def scratch(self) -> _Scratch:
        """Make room for a chunk, as it is read and as it is worked on."""
        features, shape = self._source.features, (min(CHUNK_ROWS, self._sizes.num_rows), self._sizes.num_columns)
        read = features.chunk_buffer() if isinstance(features, DenseFeatures) else np.empty(0, np.uint8)
        rows = np.empty((0, 0) if self._sizes.is_float32 else shape, np.float32)
        return _Scratch(read, rows, np.empty(shape, np.float32))

    def _chunks(self, unit: Block, scratch: _Scratch, *, check: bool) -> Iterator[tuple[int, Rows]]:
        """Yield first row and rows of each chunk of a unit; they are valid until the next is asked for."""
        features = cast("DenseFeatures | FloatArray", self._source.features)
        num_rows, start, stop = self._sizes.num_rows, unit.start, unit.stop
        if isinstance(features, np.ndarray):
            for first in range(start, stop, CHUNK_ROWS):
                rows = features[first : min(first + CHUNK_ROWS, stop)]
                yield first, rows if self._sizes.is_float32 else _copied(rows, scratch.rows[: len(rows)])
            return
        length = unit_rows(self._sizes.num_columns)
        ahead = min(start + UNITS_AHEAD * length, num_rows)
        features.will_need(ahead, min(ahead + length, num_rows))
        first = start
        for piece_start, piece in features.read_span(start, stop, scratch.read, check=check):
            done = 0
            while done < len(piece):
                place = piece_start + done - first
                part = piece[done : done + CHUNK_ROWS - place]
                _copied(part, scratch.rows[place : place + len(part)])
                done += len(part)
                if place + len(part) == min(CHUNK_ROWS, stop - first):
                    yield first, scratch.rows[: place + len(part)]
                    first += CHUNK_ROWS


class AccumulateWork(_DenseWork[ChunkSums]):
    """The first pass: exponents of a unit's rows, and the sums a, b and C of its chunks."""

    name: ClassVar[str] = "rank.attribute.accumulate"
    record: ClassVar[type[Any]] = ChunkSums

    def __init__(self, source: FeatureSource, gamma: float, exponents: Place) -> None:
        super().__init__(source)
        self._gamma = gamma
        self._exponents = exponents

    def describe(self) -> Json:
        """Say where features and exponents are."""
        return {
            "features": self._source.description,
            "gamma": self._gamma,
            "exponents": self._exponents.describe(),
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> AccumulateWork:
        """Open the work on a worker that has only files."""
        del resources
        source, place = FeatureSource.open(description["features"]), open_place(description["exponents"])
        return cls(source, description["gamma"], place)._with_one_blas_thread()

    def run(self, block: Block, given: Json, scratch: _Scratch) -> ChunkSums:
        """Weigh the rows of a unit."""
        del given
        size, num_chunks = self._sizes.num_columns, -(-block.num_rows // CHUNK_ROWS)
        exponents = self._exponents.room(block.start, block.stop)
        sums = ChunkSums(
            np.empty(num_chunks),
            np.empty(num_chunks),
            np.empty((num_chunks, size)),
            np.empty((num_chunks, size, size), np.float32),
        )
        for chunk, (start, x) in enumerate(self._chunks(block, scratch, check=True)):
            scaled, linear = scratch.made[: len(x)], sums.linear[chunk]
            here = exponents[start - block.start : start - block.start + len(x)]
            sums.least[chunk], sums.total[chunk] = weigh_rows(x, self._gamma, here, scaled, linear)
            if not (math.isfinite(sums.total[chunk]) and np.isfinite(linear).all()):
                raise UsageError(
                    "a feature is not a finite float32",
                    where=f"rows {start} to {start + len(x) - 1}",
                    expected="finite numbers",
                )
            with np.errstate(over="ignore", invalid="ignore"):  # looked at once, in the sum
                # A matrix and its own transpose: numpy calls syrk.
                np.matmul(scaled.T, scaled, out=sums.quadratic[chunk])
        self._exponents.write(block.start, exponents)
        return sums


class EvaluateWork(_DenseWork[Evaluated]):
    """The second pass: exponents become values."""

    name: ClassVar[str] = "rank.attribute.evaluate"
    record: ClassVar[type[Any]] = Evaluated
    has_small_records: ClassVar[bool] = True

    def __init__(
        self, source: FeatureSource, sums: Sums, exponents: Place, values: Place, sums_place: Json = None
    ) -> None:
        super().__init__(source)
        # The largest entry becomes one, so that a float32 copy keeps them all.
        self._factor = max(float(sums.quadratic.max()), -float(sums.quadratic.min())) or 1.0
        self._quadratic = np.empty(sums.quadratic.shape, np.float32)
        np.divide(sums.quadratic, self._factor, out=self._quadratic, casting="same_kind")
        self._linear = sums.linear / self._factor
        self._least = sums.least
        self._exponents = exponents
        self._values = values
        self._sums_place = sums_place

    def describe(self) -> Json:
        """Say where features, sums, exponents and values are."""
        return {
            "features": self._source.description,
            "sums": self._sums_place,
            "exponents": self._exponents.describe(),
            "values": self._values.describe(),
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> EvaluateWork:
        """Open the work on a worker that has only files."""
        del resources
        source, sums = FeatureSource.open(description["features"]), Sums.open(description["sums"])
        exponents, values = (open_place(description[name]) for name in ("exponents", "values"))
        return cls(source, sums, exponents, values)._with_one_blas_thread()

    def run(self, block: Block, given: Json, scratch: _Scratch) -> Evaluated:
        """Evaluate the rows of a unit."""
        del given
        values = self._exponents.read(block.start, block.stop)
        for start, x in self._chunks(block, scratch, check=False):
            product = np.matmul(x, self._quadratic, out=scratch.made[: len(x)])
            here = values[start - block.start : start - block.start + len(x)]
            evaluate_rows(x, product, self._factor, self._linear, self._least, here)
        self._values.write(block.start, values)
        return Evaluated(block.num_rows)


def _copied(rows: FloatArray, out: Rows) -> Rows:
    with np.errstate(over="ignore", invalid="ignore"):  # becomes infinite, and is refused as such
        np.copyto(out, rows, casting="unsafe")
    return out
