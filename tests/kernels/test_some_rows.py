"""Offsets that make no sense are seen, and those of rows that nobody asked for are not looked at."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_kernels.some_rows import find_bad_offsets


@pytest.mark.parametrize(
    ("offsets", "rows", "bad"),
    [
        ([0, 2, 2, 5], [0, 1, 2], -1),
        ([0, 2, 2, 5], [], -1),
        ([0, 2, 2, 6], [2, 0], 0),
        ([0, 2, 2, 2**62], [0, 1, 2], 2),
        ([0, 3, 2, 5], [0, 1, 2], 1),
        ([-1, 2, 2, 5], [0, 1, 2], 0),
        ([-(2**62), 2, 2, 5], [1, 2], -1),
        ([0, 2, 2**62, 3, 5], [3], -1),
    ],
)
def test_the_first_bad_row_of_those_asked_for_is_found(offsets, rows, bad):
    assert find_bad_offsets(np.array(offsets), 5, np.array(rows, np.int64)) == bad
