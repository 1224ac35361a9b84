"""The attribute vector of dense features, streamed from a store or in memory: two passes, most of it in BLAS.

The first pass sums a, b and C, the second evaluates. A thread takes a unit of a few chunks, reads its rows chunk by
chunk and works on them while they are in cache; the system reads the next units meanwhile. The first pass compares
every byte with the manifest. Chunks have 4,096 rows counted from row 0, each is worked on with one BLAS thread, and
they are added up in float64 in chunk order: the result is the same bits for any block size and any number of threads.
Memory: see ``plan_dense``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.attribute import add_scaled
from ecgl_scale.engine.block import split_blocks
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.place import HeldPlace, Place, make_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import one_blas_thread
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.attribute_units import CHUNK_ROWS, AccumulateWork, EvaluateWork, Sums, unit_rows
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.rank.sizes import FeatureSizes, Need
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.units import MIB

MAX_EXPONENT = 700.0
"""exp(-708) is the last float64 with all its digits."""
RESERVE_BYTES = 48 * MIB
"""It is for compiled code, BLAS's packing buffers and readers' padding."""

Vector = NDArray[np.float64]
OnRows = Callable[[int], None]


def weights_underflow(gamma: float) -> UsageError:
    """Make the error for features whose weights float64 cannot hold."""
    return UsageError(
        "the features are so large that the weights exp(-gamma |x|^2) of all rows underflow",
        where=f"gamma = {gamma:g}",
        fix="scale the features down, or give a smaller gamma",
    )


def num_dropped_rows(source: FeatureSource) -> int:
    """Rows of zeros that are no nodes any more: of the sums they have a weight of one each in a, and nothing else."""
    return source.features.num_dropped if isinstance(source.features, FeatureStore) else 0


def plan_dense(sizes: FeatureSizes, threads: int) -> Need:
    """Memory of the dense passes on top of what the process holds, with one thread and with all.

    8 N + threads * (2 chunk_bytes + a stored chunk) + K^2 (12 + 4 (threads + 2) chunks a unit) + RESERVE_BYTES, a chunk
    being 4,096 rows of float32; one a thread where rows are in memory as float32.
    """
    return Need(_dense_bytes(sizes, 1), _dense_bytes(sizes, threads))


def _dense_bytes(sizes: FeatureSizes, threads: int) -> int:
    num_rows, num_columns = sizes.num_rows, sizes.num_columns
    per_thread = min(CHUNK_ROWS, num_rows) * num_columns * (4 if sizes.is_float32 else 8) + sizes.chunk_bytes
    # C in float64 and in float32, and the chunks' sums: of a unit a thread, one waiting and one being added.
    sums = num_columns**2 * (8 + 4 + 4 * (threads + 2) * (unit_rows(num_columns) // CHUNK_ROWS))
    return 8 * num_rows + threads * per_thread + sums + RESERVE_BYTES


class DensePasses:
    """The two passes over dense rows, in a store or in memory."""

    num_passes = 2

    def __init__(self, source: FeatureSource, gamma: float, resources: Resources) -> None:
        """Let as many threads take part as fit the budget, or refuse."""
        sizes = FeatureSizes.of(source.features)
        threads, room_bytes = resources.threads, resources.room_bytes
        while threads > 1 and _dense_bytes(sizes, threads) > room_bytes:
            threads -= 1
        what = f"8 bytes for each of {sizes.num_rows:,} rows, one unit of rows and {sizes.num_columns:,}^2 sums"
        resources.require(_dense_bytes(sizes, threads), stage="the attribute vector", formula=what)
        self._source = source
        self._gamma = gamma
        self._resources = resources.with_threads(threads)
        self._num_columns = sizes.num_columns
        self._units = split_blocks(sizes.num_rows, unit_rows(sizes.num_columns))
        cuts = [*(unit.start for unit in self._units), sizes.num_rows]
        self._exponents = make_place(resources, "attributes/exponents", cuts, "float64")
        self._values: Place = self._exponents
        if not isinstance(self._exponents, HeldPlace):
            self._values = make_place(resources, "attributes/values", cuts, "float64")

    def run(self, *, on_rows: OnRows) -> Vector:
        """Run both passes and return r before it is divided by its sum; ``on_rows`` gets the rows done, of both."""
        num_rows = self._units[-1].stop
        sums = self.accumulate(on_rows=on_rows)
        self.evaluate(sums, on_rows=lambda done: on_rows(num_rows + done))
        return self.values

    @property
    def values(self) -> Vector:
        """The rows as the last pass has left them."""
        return self._values.read(0, self._units[-1].stop)

    def accumulate(self, *, on_rows: OnRows = lambda _: None) -> Sums:
        """Sum a, b and C, and keep gamma |x|^2 of each row. One pass, 2 N K^2 flops of which syrk does half."""
        total, least, size = 0.0, math.inf, self._num_columns
        linear, quadratic = np.zeros(size, np.float64), np.zeros((size, size), np.float64)
        work = AccumulateWork(self._source, self._gamma, self._exponents)
        with one_blas_thread():
            for unit, sums in run_blocks(work, self._units, self._resources):
                for chunk in range(sums.least.size):
                    share = math.exp(-sums.least[chunk])
                    total += share * float(sums.total[chunk])
                    np.add(linear, share * sums.linear[chunk], out=linear)
                    add_scaled(quadratic, sums.quadratic[chunk], share)
                least = min(least, float(sums.least.min()))
                on_rows(unit.stop)
        total -= num_dropped_rows(self._source)
        if least > MAX_EXPONENT or total <= 0.0:
            raise weights_underflow(self._gamma)
        linear *= 2.0 * self._gamma / total
        quadratic *= 2.0 * self._gamma**2 / total
        if not math.isfinite(quadratic.sum()):
            raise weights_underflow(self._gamma)
        return Sums(linear, quadratic, least)

    def evaluate(self, sums: Sums, *, on_rows: OnRows = lambda _: None) -> None:
        """Turn gamma |x|^2 into r before it is divided by its sum. One pass, 2 N K^2 flops."""
        place = None if self._values is self._exponents else sums.put(self._resources)
        work = EvaluateWork(self._source, sums, self._exponents, self._values, place)
        with one_blas_thread():
            for unit, _ in run_blocks(work, self._units, self._resources):
                on_rows(unit.stop)
