"""The attribute vector of dense features, streamed from a store or in memory: two passes, most of it in BLAS.

The first pass sums a, b and C, the second evaluates. Rows are worked on in chunks of 4,096 counted from row 0 wherever
the blocks end, each with one BLAS thread, and added up in float64 in chunk order: the result is the same bits for any
block size and any number of threads.
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
from threadpoolctl import threadpool_limits

from ecgl_kernels.attribute import add_scaled, evaluate_rows, weigh_rows
from ecgl_scale.errors import UsageError
from ecgl_scale.run.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.source import FloatArray
from ecgl_scale.store.threads import map_bounded
from ecgl_scale.units import MIB, format_bytes

CHUNK_ROWS = 4096
"""Long enough for BLAS to reach its speed, short enough for a chunk of 100 columns to stay in cache."""
MAX_READ_AHEAD = 2
MAX_EXPONENT = 700.0
"""exp(-708) is the last float64 with all its digits."""
RESERVE_BYTES = 48 * MIB
"""Compiled code, BLAS's packing buffers, readers' padding."""

Vector = NDArray[np.float64]
Chunk = tuple[int, FloatArray]
"""First row, rows."""


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
    """A thread's own memory: the rows as float32 (empty where they are that already), and what is made of them."""

    rows: NDArray[np.float32]
    made: NDArray[np.float32]


class DensePasses:
    """The two passes over dense rows, in a store or in memory."""

    num_passes = 2

    def __init__(self, source: DenseFeatures | FloatArray, gamma: float, *, threads: int, read_ahead: int) -> None:
        self._source = source
        self._gamma = gamma
        self._threads = threads
        self.num_rows, self.num_features = shape_of(source)
        shape = (min(CHUNK_ROWS, self.num_rows), self.num_features)
        self._is_ready = source.dtype == np.float32 and (isinstance(source, DenseFeatures) or source.flags.c_contiguous)
        self._carry = np.empty(shape, source.dtype)
        self._into = source.buffers(read_ahead + 1) if isinstance(source, DenseFeatures) else []
        self._scratch: SimpleQueue[_Scratch] = SimpleQueue()
        for _ in range(threads):
            rows = np.empty((0, 0) if self._is_ready else shape, np.float32)
            self._scratch.put(_Scratch(rows, np.empty(shape, np.float32)))

    @classmethod
    def plan(
        cls, source: DenseFeatures | FloatArray, gamma: float, *, budget: MemoryBudget, threads: int
    ) -> DensePasses:
        """As much reading ahead, and then as many threads, as fit the budget; or a refusal."""
        held = own_memory_bytes()
        deepest = MAX_READ_AHEAD if isinstance(source, DenseFeatures) else 0
        plans = [(threads, ahead) for ahead in range(deepest, -1, -1)] + [(1, 0)]
        for num_threads, read_ahead in plans:
            needed = held + dense_bytes(source, threads=num_threads, read_ahead=read_ahead)
            if needed <= budget.total_bytes:
                return cls(source, gamma, threads=num_threads, read_ahead=read_ahead)
        num_rows, num_features = shape_of(source)
        what = f"8 bytes for each of {num_rows:,} rows, one block, two chunks and {num_features:,}^2 sums"
        budget.require(needed, stage="the attribute vector", formula=f"{format_bytes(held)} held already + {what}")
        raise AssertionError("the budget refuses what does not fit it")

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

        self._run(lambda chunk: self._weigh(chunk, exponents), take, on_rows)
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

        def work(chunk: Chunk) -> None:
            start, rows = chunk
            scratch = self._scratch.get()
            x = self._as_float32(rows, scratch)
            product = np.matmul(x, quadratic, out=scratch.made[: len(x)])
            evaluate_rows(x, product, factor, linear, sums.least, values[start : start + len(x)])
            self._scratch.put(scratch)

        self._run(work, lambda _: None, on_rows)

    def _weigh(self, chunk: Chunk, exponents: Vector) -> _ChunkSums:
        start, rows = chunk
        scratch = self._scratch.get()
        x = self._as_float32(rows, scratch)
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
        self._scratch.put(scratch)
        return _ChunkSums(least, total, linear, quadratic)

    def _as_float32(self, rows: FloatArray, scratch: _Scratch) -> NDArray[np.float32]:
        if self._is_ready:
            return rows.astype(np.float32, copy=False)
        x = scratch.rows[: len(rows)]
        with np.errstate(over="ignore", invalid="ignore"):  # becomes infinite, and is refused as such
            np.copyto(x, rows, casting="unsafe")
        return x

    def _run(self, work: Callable[[Chunk], Any], take: Callable[[Any], None], on_rows: Callable[[int], None]) -> None:
        """``work`` on all chunks in threads, ``take`` of their results in order."""
        done = 0
        # One BLAS thread for each of ours: the sums of a chunk then never depend on how many there are.
        with threadpool_limits(1, user_api="blas"):
            for chunks in _cut(self._blocks(), self._carry):
                for result in map_bounded(work, chunks, threads=min(self._threads, len(chunks))) if chunks else ():
                    take(result)
                done += sum(len(rows) for _, rows in chunks)
                on_rows(done)

    def _blocks(self) -> Iterator[FloatArray]:
        if isinstance(self._source, DenseFeatures):
            stream = self._source.stream(into=self._into, threads=max(len(self._into) - 1, 1))
            return (rows for _, rows in stream)
        return iter([self._source])


def dense_bytes(source: DenseFeatures | FloatArray, *, threads: int, read_ahead: int) -> int:
    """Memory of the dense passes on top of what the process holds.

    8 N + (read_ahead + 1) block_bytes + (threads + 1) chunk_bytes + 4 K^2 (threads + 4) + RESERVE_BYTES, a chunk being
    4,096 rows; a thread needs two where rows are not float32 yet.
    """
    num_rows, num_features = shape_of(source)
    values = min(CHUNK_ROWS, num_rows) * num_features
    blocks = (read_ahead + 1) * source.layout.block_bytes if isinstance(source, DenseFeatures) else 0
    per_thread = values * (4 if source.dtype == np.float32 else 8)
    if isinstance(source, np.ndarray) and not source.flags.c_contiguous:
        per_thread = values * 8
    # C in float64 and in float32, and the chunks' sums: one a thread and one being added.
    sums = num_features**2 * (8 + 4 + 4 * (threads + 1))
    return 8 * num_rows + blocks + values * source.dtype.itemsize + threads * per_thread + sums + RESERVE_BYTES


def _cut(blocks: Iterator[FloatArray], carry: FloatArray) -> Iterator[list[Chunk]]:
    """Whole chunks, counted from row 0, a block's worth at a time; rows that lie in two blocks meet in ``carry``."""
    start = held = 0
    for rows in blocks:
        chunks: list[Chunk] = []
        position = 0
        if held:
            position = min(CHUNK_ROWS - held, len(rows))
            carry[held : held + position] = rows[:position]
            held += position
            if held == CHUNK_ROWS:
                chunks.append((start, carry))
                start, held = start + CHUNK_ROWS, 0
        while len(rows) - position >= CHUNK_ROWS:
            chunks.append((start, rows[position : position + CHUNK_ROWS]))
            start, position = start + CHUNK_ROWS, position + CHUNK_ROWS
        yield chunks
        if position < len(rows):  # only now, as the carried chunk was in use
            held = len(rows) - position
            carry[:held] = rows[position:]
    if held:
        yield [(start, carry[:held])]


def shape_of(source: DenseFeatures | FloatArray) -> tuple[int, int]:
    """Rows and columns."""
    if isinstance(source, np.ndarray):
        return int(source.shape[0]), int(source.shape[1])
    return source.num_rows, source.num_features
