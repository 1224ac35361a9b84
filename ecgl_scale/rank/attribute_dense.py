"""The attribute vector of dense features, streamed from a store or in memory: two passes, most of it in BLAS.

The first pass sums a, b and C, the second evaluates. A thread takes a unit of a few chunks, reads its rows chunk by
chunk and works on them while they are in cache; the system reads the next units meanwhile. The first pass compares
every byte with the manifest. Chunks have 4,096 rows counted from row 0, each is worked on with one BLAS thread, and
they are added up in float64 in chunk order: the result is the same bits for any block size and any number of threads.
Memory: see ``dense_bytes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.attribute import add_scaled, evaluate_rows, weigh_rows
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import map_bounded, one_blas_thread
from ecgl_scale.errors import UsageError
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.source import FloatArray
from ecgl_scale.units import MIB

CHUNK_ROWS = 4096
"""Long enough for BLAS to reach its speed, short enough for a chunk of 100 columns to stay in cache."""
UNIT_BYTES = 32 * MIB
"""Several chunks are a thread's at once: the store's own chunks end elsewhere, and are read whole at both ends."""
UNITS_AHEAD = 4
"""How far the system is asked to read ahead of the threads."""
MAX_EXPONENT = 700.0
"""exp(-708) is the last float64 with all its digits."""
RESERVE_BYTES = 48 * MIB
"""Compiled code, BLAS's packing buffers, readers' padding."""

Vector = NDArray[np.float64]


def weights_underflow(gamma: float) -> UsageError:
    """The error for features whose weights float64 cannot hold."""
    return UsageError(
        "the features are so large that the weights exp(-gamma |x|^2) of all rows underflow",
        where=f"gamma = {gamma:g}",
        fix="scale the features down, or give a smaller gamma",
    )


@dataclass(frozen=True)
class Sums:
    """What the first pass leaves for the second: b and C divided by a, and the least exponent of all rows."""

    linear: Vector
    quadratic: Vector
    least: float


@dataclass(frozen=True)
class _ChunkSums:
    """Sums of a chunk, with weights relative to its heaviest row."""

    least: float
    total: float
    linear: Vector
    quadratic: NDArray[np.float32]


@dataclass(frozen=True)
class _Scratch:
    """A thread's own memory: what is read, the rows as float32 (both empty where not needed), what is made of them."""

    read: NDArray[np.uint8]
    rows: NDArray[np.float32]
    made: NDArray[np.float32]


_ChunkWork = Callable[[int, NDArray[np.float32], _Scratch], Any]
"""First row, rows, memory to work in."""


class DensePasses:
    """The two passes over dense rows, in a store or in memory."""

    num_passes = 2

    def __init__(self, source: DenseFeatures | FloatArray, gamma: float, *, threads: int) -> None:
        self._source = source
        self._gamma = gamma
        self._threads = threads
        self.num_rows, self.num_features = shape_of(source)
        self._unit_rows = _unit_rows(self.num_features)
        self._is_ready = _is_ready(source)
        shape = (min(CHUNK_ROWS, self.num_rows), self.num_features)
        self._scratch: SimpleQueue[_Scratch] = SimpleQueue()
        for _ in range(threads):
            read = source.chunk_buffer() if isinstance(source, DenseFeatures) else np.empty(0, np.uint8)
            rows = np.empty((0, 0) if self._is_ready else shape, np.float32)
            self._scratch.put(_Scratch(read, rows, np.empty(shape, np.float32)))

    @classmethod
    def plan(cls, source: DenseFeatures | FloatArray, gamma: float, resources: Resources) -> DensePasses:
        """As many threads as fit the budget, or a refusal."""
        threads, room_bytes = resources.threads, resources.room_bytes
        while threads > 1 and dense_bytes(source, threads=threads) > room_bytes:
            threads -= 1
        num_rows, num_features = shape_of(source)
        what = f"8 bytes for each of {num_rows:,} rows, one unit of rows and {num_features:,}^2 sums"
        resources.require(dense_bytes(source, threads=threads), stage="the attribute vector", formula=what)
        return cls(source, gamma, threads=threads)

    def run(self, *, on_rows: Callable[[int], None]) -> Vector:
        """Both passes: r before it is divided by its sum; ``on_rows`` gets the rows done so far, of both."""
        values = np.empty(self.num_rows, np.float64)
        sums = self.accumulate(values, on_rows=on_rows)
        self.evaluate(sums, values, on_rows=lambda done: on_rows(self.num_rows + done))
        return values

    def accumulate(self, exponents: Vector, *, on_rows: Callable[[int], None] = lambda _: None) -> Sums:
        """Sum a, b and C, and fill ``exponents`` with gamma |x|^2. One pass, 2 N K^2 flops of which syrk does half."""
        total, least = 0.0, math.inf
        linear = np.zeros(self.num_features, np.float64)
        quadratic = np.zeros((self.num_features, self.num_features), np.float64)

        def take(part: _ChunkSums) -> None:
            nonlocal total, least
            share = math.exp(-part.least)
            total += share * part.total
            np.add(linear, share * part.linear, out=linear)
            add_scaled(quadratic, part.quadratic, share)
            least = min(least, part.least)

        self._run(lambda start, x, scratch: self._weigh(start, x, scratch, exponents), take, on_rows, check=True)
        if least > MAX_EXPONENT:
            raise weights_underflow(self._gamma)
        linear *= 2.0 * self._gamma / total
        quadratic *= 2.0 * self._gamma**2 / total
        if not math.isfinite(quadratic.sum()):
            raise weights_underflow(self._gamma)
        return Sums(linear, quadratic, least)

    def evaluate(self, sums: Sums, values: Vector, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
        """Turn ``values``, which hold gamma |x|^2, into r before it is divided by its sum. One pass, 2 N K^2 flops."""
        # The largest entry becomes one, so that a float32 copy keeps them all.
        factor = max(float(sums.quadratic.max()), -float(sums.quadratic.min())) or 1.0
        quadratic = np.empty(sums.quadratic.shape, np.float32)
        np.divide(sums.quadratic, factor, out=quadratic, casting="same_kind")
        linear = sums.linear / factor

        def work(start: int, x: NDArray[np.float32], scratch: _Scratch) -> None:
            product = np.matmul(x, quadratic, out=scratch.made[: len(x)])
            evaluate_rows(x, product, factor, linear, sums.least, values[start : start + len(x)])

        self._run(work, lambda _: None, on_rows, check=False)

    def _weigh(self, start: int, x: NDArray[np.float32], scratch: _Scratch, exponents: Vector) -> _ChunkSums:
        scaled, linear = scratch.made[: len(x)], np.empty(self.num_features, np.float64)
        least, total = weigh_rows(x, self._gamma, exponents[start : start + len(x)], scaled, linear)
        if not (math.isfinite(total) and np.isfinite(linear).all()):
            raise UsageError(
                "a feature is not a finite float32",
                where=f"rows {start} to {start + len(x) - 1}",
                expected="finite numbers",
            )
        with np.errstate(over="ignore", invalid="ignore"):  # looked at once, in the sum
            quadratic = np.matmul(scaled.T, scaled)  # a matrix and its own transpose: numpy calls syrk
        return _ChunkSums(least, total, linear, quadratic)

    def _run(
        self, work: _ChunkWork, take: Callable[[Any], None], on_rows: Callable[[int], None], *, check: bool
    ) -> None:
        """``work`` on all chunks in threads, ``take`` of their results in order."""

        def work_unit(start: int) -> list[Any]:
            scratch = self._scratch.get()
            try:
                stop = min(start + self._unit_rows, self.num_rows)
                return [work(first, x, scratch) for first, x in self._chunks(start, stop, scratch, check=check)]
            finally:
                self._scratch.put(scratch)

        units = range(0, self.num_rows, self._unit_rows)
        with one_blas_thread():
            for start, results in zip(units, map_bounded(work_unit, units, threads=self._threads), strict=True):
                for result in results:
                    take(result)
                on_rows(min(start + self._unit_rows, self.num_rows))

    def _chunks(
        self, start: int, stop: int, scratch: _Scratch, *, check: bool
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """First row and rows of each chunk of a unit; valid until the next is asked for."""
        if isinstance(self._source, np.ndarray):
            for first in range(start, stop, CHUNK_ROWS):
                rows = self._source[first : min(first + CHUNK_ROWS, stop)]
                yield first, rows if self._is_ready else _copied(rows, scratch.rows[: len(rows)])
            return
        ahead = min(start + UNITS_AHEAD * self._unit_rows, self.num_rows)
        self._source.will_need(ahead, min(ahead + self._unit_rows, self.num_rows))
        first = start
        for piece_start, piece in self._source.read_span(start, stop, scratch.read, check=check):
            done = 0
            while done < len(piece):
                place = piece_start + done - first
                part = piece[done : done + CHUNK_ROWS - place]
                _copied(part, scratch.rows[place : place + len(part)])
                done += len(part)
                if place + len(part) == min(CHUNK_ROWS, stop - first):
                    yield first, scratch.rows[: place + len(part)]
                    first += CHUNK_ROWS


def _copied(rows: FloatArray, out: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):  # becomes infinite, and is refused as such
        np.copyto(out, rows, casting="unsafe")
    return out


def _is_ready(source: DenseFeatures | FloatArray) -> bool:
    """Whether rows can be worked on where they are."""
    return isinstance(source, np.ndarray) and source.dtype == np.float32 and source.flags.c_contiguous


def dense_bytes(source: DenseFeatures | FloatArray, *, threads: int) -> int:
    """Memory of the dense passes on top of what the process holds.

    8 N + threads * (2 chunk_bytes + a stored chunk) + K^2 (12 + 4 (threads + 2) chunks a unit) + RESERVE_BYTES, a chunk
    being 4,096 rows of float32; one a thread where rows are in memory as float32.
    """
    num_rows, num_features = shape_of(source)
    per_thread = min(CHUNK_ROWS, num_rows) * num_features * (4 if _is_ready(source) else 8)
    per_thread += source.chunk_buffer_bytes if isinstance(source, DenseFeatures) else 0
    # C in float64 and in float32, and the chunks' sums: of a unit a thread, one waiting and one being added.
    sums = num_features**2 * (8 + 4 + 4 * (threads + 2) * (_unit_rows(num_features) // CHUNK_ROWS))
    return 8 * num_rows + threads * per_thread + sums + RESERVE_BYTES


def _unit_rows(num_features: int) -> int:
    """Rows of a unit: whole chunks, and the same for any budget and number of threads."""
    return CHUNK_ROWS * max(UNIT_BYTES // (CHUNK_ROWS * num_features * 4), 1)


def shape_of(source: DenseFeatures | FloatArray) -> tuple[int, int]:
    """Rows and columns."""
    if isinstance(source, np.ndarray):
        return int(source.shape[0]), int(source.shape[1])
    return source.num_rows, source.num_features
