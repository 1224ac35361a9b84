"""S += F^T F in float64, for rows of random features: half of the products, in threads, with the same bits for any.

    S[:j, i:j] += F[:, :j]^T F[:, i:j]      for strips of 256 columns i to j, each a product of one BLAS thread

S is symmetric, so a strip needs the rows down to its own diagonal alone; ``mirror`` fills in the rest at the end.
Rows come 1,024 at a time, in a fixed order, and are added in that order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.threads import map_bounded, one_blas_thread

STRIP_COLUMNS = 256

Square = NDArray[np.float64]


def add_gram(total: Square, rows: NDArray[Any], weight: float = 1.0, *, threads: int) -> None:
    """Add ``weight * rows^T rows`` to the upper strips of ``total``. Memory: rows in float64, a strip a thread."""
    held = np.asarray(rows, np.float64)

    def add(start: int) -> None:
        stop = min(start + STRIP_COLUMNS, held.shape[1])
        product = held[:, :stop].T @ held[:, start:stop]
        if weight != 1.0:
            product *= weight
        total[:stop, start:stop] += product

    with one_blas_thread():
        # The longest strips come first, so that no thread is left alone with one at the end.
        starts = range(0, held.shape[1], STRIP_COLUMNS)[::-1]
        for _ in map_bounded(add, starts, threads=threads):
            pass


def mirror(total: Square) -> None:
    """Copy the part above the diagonal to below it."""
    for start in range(0, len(total), STRIP_COLUMNS):
        stop = min(start + STRIP_COLUMNS, len(total))
        total[start:stop, :start] = total[:start, start:stop].T
        block = total[start:stop, start:stop]
        block[:] = np.triu(block) + np.triu(block, 1).T


def pack(square: Square) -> NDArray[np.float64]:
    """The upper triangle of a symmetric matrix, row after row."""
    size = len(square)
    packed = np.empty(size * (size + 1) // 2)
    first = 0
    for row in range(size):
        packed[first : first + size - row] = square[row, row:]
        first += size - row
    return packed


def add_packed(total: Square, packed: NDArray[np.float64], weight: float = 1.0) -> None:
    """Add a packed triangle, times ``weight``, to the upper triangle of ``total``."""
    size, first = len(total), 0
    for row in range(size):
        part = packed[first : first + size - row]
        total[row, row:] += part if weight == 1.0 else weight * part
        first += size - row
