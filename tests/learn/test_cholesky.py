"""The triangular factor of a symmetric matrix, by blocks in threads."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale.learn.cholesky import factor_lower


@pytest.mark.parametrize("size", [1, 5, 512, 700, 1100])
def test_the_factor_is_numpys_with_the_same_bits_for_any_threads(size: int) -> None:
    rows = np.random.default_rng(size).normal(size=(size + 3, size))
    square = rows.T @ rows + np.eye(size)
    found = []
    for threads in (1, 2, 3):
        lower = square.copy()
        assert factor_lower(lower, threads=threads)
        found.append(np.tril(lower))
    np.testing.assert_allclose(found[0], np.linalg.cholesky(square), atol=1e-9 * np.abs(square).max())
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("place", [0, 600])
def test_a_matrix_that_is_not_positive_definite_has_none(place: int) -> None:
    square = np.eye(640)
    square[place, place] = -1.0
    assert not factor_lower(square, threads=2)
