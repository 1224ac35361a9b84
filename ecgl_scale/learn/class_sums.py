"""What the closed-form learner keeps of the rows of a class: their number, their sum and the sum of their squares.

    n = number of rows        s = sum f        S = sum f f^T        float64; no row, no id

Sums are plain: rows of a class that comes back are added, rows that are forgotten are subtracted. S takes width^2 / 2
numbers as a triangle. A class of few rows has an S of low rank, and is kept as the triangular factor of its rows (QR),
with S = factor^T factor: a rotation of the rows, from which S is made again and none of them can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.threads import one_blas_thread
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.learn.gram import Square, add_gram, add_packed, mirror, pack

FACTOR_SHARE = 4
"""A factor of more rows than width / 4 is no smaller than a triangle by much, and takes long to make."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over rows of one class."""

    count: int
    total: Vector
    factor: Square | None = None
    """[rows, width]; or there is a ``triangle``."""
    triangle: Vector | None = None

    @classmethod
    def empty(cls, width: int) -> ClassSums:
        """Sums over no rows."""
        return cls(0, np.zeros(width), factor=np.zeros((0, width)))

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.total.size

    def plus(self, chunks: Iterable[NDArray[np.float32]], num_rows: int, *, threads: int) -> ClassSums:
        """The sums with ``num_rows`` more rows, which come in chunks. Memory: two squares at the most."""
        if not num_rows:
            return self
        total = self.total.copy()
        if self.factor is not None and len(self.factor) + num_rows <= self.width // FACTOR_SHARE:
            rows = [self.factor]
            for chunk in chunks:
                rows.append(chunk.astype(np.float64))
                total += rows[-1].sum(axis=0)
            with one_blas_thread():
                factor: Square = np.asarray(np.linalg.qr(np.vstack(rows), mode="r"))
            return ClassSums(self.count + num_rows, total, factor=factor)
        square = np.zeros((self.width, self.width))
        self.add_to(square, threads=threads)
        for chunk in chunks:
            held = chunk.astype(np.float64)
            total += held.sum(axis=0)
            add_gram(square, held, threads=threads)
        return ClassSums(self.count + num_rows, total, triangle=pack(square))

    def minus(self, chunks: Iterable[NDArray[np.float32]], num_rows: int, *, threads: int) -> ClassSums:
        """The sums without rows that were added before."""
        if num_rows > self.count:
            raise InvalidInputError(f"{num_rows} rows of a class are to be forgotten, and it has {self.count}")
        if num_rows == self.count:
            return ClassSums.empty(self.width)
        square, total = np.zeros((self.width, self.width)), self.total.copy()
        self.add_to(square, threads=threads)
        for chunk in chunks:
            held = chunk.astype(np.float64)
            total -= held.sum(axis=0)
            add_gram(square, held, -1.0, threads=threads)
        return ClassSums(self.count - num_rows, total, triangle=pack(square))

    def add_to(self, square: Square, weight: float = 1.0, *, threads: int) -> None:
        """Add ``weight * S`` to the upper strips of a square."""
        if self.factor is not None and len(self.factor):
            add_gram(square, self.factor, weight, threads=threads)
        elif self.triangle is not None:
            add_packed(square, self.triangle, weight)

    def square(self, *, threads: int) -> Square:
        """S itself, both halves of it."""
        found = np.zeros((self.width, self.width))
        self.add_to(found, threads=threads)
        mirror(found)
        return found

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The sums as named arrays, for a file."""
        found: dict[str, NDArray[Any]] = {f"{prefix}.count": np.array([self.count]), f"{prefix}.total": self.total}
        if self.factor is not None:
            found[f"{prefix}.factor"] = self.factor
        if self.triangle is not None:
            found[f"{prefix}.triangle"] = self.triangle
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> ClassSums:
        """Read what ``arrays`` gave.

        Raises
        ------
        InvalidInputError
            Arrays are missing, or do not belong together.
        """
        count, total = arrays.get(f"{prefix}.count"), arrays.get(f"{prefix}.total")
        factor, triangle = arrays.get(f"{prefix}.factor"), arrays.get(f"{prefix}.triangle")
        if count is None or total is None or count.shape != (1,) or total.ndim != 1:
            raise InvalidInputError("sums of a class are incomplete", expected=f"{prefix}.count and {prefix}.total")
        width = total.size
        fits_factor = factor is not None and factor.ndim == 2 and factor.shape[1] == width
        fits_triangle = triangle is not None and triangle.shape == (width * (width + 1) // 2,)
        if fits_factor == fits_triangle:
            raise InvalidInputError("sums of a class do not belong together", expected="a factor or a triangle")
        return cls(int(count[0]), total, factor, triangle)
