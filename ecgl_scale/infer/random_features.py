"""Random features of rows: f = relu(p R), R of normal numbers that a seed gives, never stored.

A ridge regression on f is one on p with the arc-cosine kernel of degree one, to which the random numbers converge
(Rahimi and Recht 2007, Cho and Saul 2009): it separates classes that no plane in p does, and its state is still a sum
over rows. R comes in blocks of 512 columns, each with a seed of its own, so a narrower map is the beginning of a wider.

Products always have 1,024 rows and 512 columns, the last ones padded, each by one BLAS thread: a product's bits may
depend on its shape, and so they depend neither on the threads nor on the memory.
Memory: 4 bytes a number of R, held as long as the map is, from the first row that is mapped on; a block of it for those
who multiply with one at a time (``draw``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ecgl_kernels.product import multiply_rows
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.engine.threads import map_bounded, one_blas_thread
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.store.source import CsrBlock

PRODUCT_ROWS = 1024
BLOCK_COLUMNS = 512
STREAM = 15
"""Tells these numbers from what else is drawn from a run's seed."""


class RandomFeatures:
    """The map of rows with ``num_inputs`` columns to ``width`` columns."""

    def __init__(self, num_inputs: int, width: int, seed: int, *, threads: int) -> None:
        """Nothing is drawn before it is asked for."""
        self.width = width
        self._num_inputs = num_inputs
        self.seed = seed
        self._threads = threads
        self.starts = list(range(0, width, BLOCK_COLUMNS))

    @cached_property
    def _blocks(self) -> list[Matrix]:
        """All of R, [inputs, columns] of each block."""
        return list(
            map_bounded(lambda start: np.ascontiguousarray(self.draw(start).T), self.starts, threads=self._threads)
        )

    def draw(self, start: int) -> Matrix:
        """The columns of R from ``start`` on, up to the end of the block that begins there, as [columns, inputs]."""
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence((STREAM, self.seed, start))))
        # All columns of a block are drawn, so that a map's first columns are those of any wider map.
        drawn: Matrix = random.standard_normal((BLOCK_COLUMNS, self._num_inputs), dtype=np.float32)
        return drawn[: self.width - start]

    @cached_property
    def crc32c(self) -> int:
        """A checksum of R: another version of numpy may draw other numbers, which would fit no head.

        Memory: two blocks of R.
        """
        crc = 0
        for start in self.starts:
            crc = crc32c_of(np.ascontiguousarray(self.draw(start).T), crc)
        return crc

    def apply(self, parts: Sequence[Matrix | CsrBlock], num_rows: int, out: Matrix) -> None:
        """Write f of at most ``PRODUCT_ROWS`` rows, whose columns are cut into parts, dense or sparse, into ``out``."""
        blocks = self._blocks
        padded = [part if isinstance(part, CsrBlock) else _padded(part) for part in parts]
        widths = [self._num_inputs // len(parts)] * len(parts)

        def fill(number: int) -> None:
            block, start = blocks[number], self.starts[number]
            total, first = np.zeros((PRODUCT_ROWS, block.shape[1]), np.float32), 0
            for part, width in zip(padded, widths, strict=True):
                weights = block[first : first + width]
                if isinstance(part, CsrBlock):
                    product = np.empty((num_rows, block.shape[1]), np.float32)
                    multiply_rows(part.indptr, part.indices, part.values, weights, product)
                    total[:num_rows] += product
                else:
                    total += part @ weights
                first += width
            np.maximum(total[:num_rows], 0, out=out[:num_rows, start : start + block.shape[1]])

        with one_blas_thread():
            for _ in map_bounded(fill, range(len(blocks)), threads=self._threads):
                pass


def _padded(rows: Matrix) -> Matrix:
    if len(rows) == PRODUCT_ROWS:
        return rows
    found = np.zeros((PRODUCT_ROWS, rows.shape[1]), np.float32)
    found[: len(rows)] = rows
    return found
