"""Rows are copied as they are; whatever else a file holds is seen, and memory outside is never touched."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.some_rows import copy_checked_rows, row_lengths


def read_rows(offsets, values, rows, limit=100):
    """The rows, or the position of the first that is bad."""
    offsets, values, rows = np.array(offsets), np.array(values, np.uint32), np.array(rows, np.int64)
    lengths = np.empty(rows.size, np.int64)
    bad = row_lengths(offsets, values.size, rows, lengths)
    if bad >= 0:
        return bad
    ends = np.concatenate([[3], 3 + np.cumsum(lengths)]).astype(np.int64)
    out = np.full(int(ends[-1]) + 1, 77, np.uint32)
    bad = copy_checked_rows(offsets, values, rows, limit, ends, out)
    assert out[:3].tolist() == [77] * 3
    assert out[-1] == 77
    return bad if bad >= 0 else [out[a:b].tolist() for a, b in pairwise(ends)]


@settings(deadline=None)  # the first call compiles
@given(rows=st.lists(st.lists(st.integers(0, 99), max_size=6).map(sorted), min_size=1, max_size=8), data=st.data())
def test_any_rows_of_a_good_file_come_as_they_are(rows, data):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    assert read_rows(offsets, [value for row in rows for value in row], wanted) == [rows[row] for row in wanted]


@pytest.mark.parametrize(
    ("offsets", "values", "bad"),
    [
        ([0, 2, 2, 5], [1, 3, 0, 100, 3], 2),
        ([0, 2, 2, 5], [1, 3, 0, 2**32 - 1, 3], 2),
        ([0, 2, 2, 5], [3, 1, 0, 2, 3], 0),
        ([0, 2, 2, 6], [1, 3, 0, 2, 3], 2),
        ([0, 2, 2, 2**62], [1, 3, 0, 2, 3], 2),
        ([0, 3, 2, 5], [1, 3, 4, 2, 3], 1),
        ([-1, 2, 2, 5], [1, 3, 0, 2, 3], 0),
        ([-(2**62), 2, 2, 5], [1, 3, 0, 2, 3], 0),
    ],
)
def test_every_fault_of_a_row_is_seen(offsets, values, bad):
    assert read_rows(offsets, values, [0, 1, 2]) == bad


def test_faults_of_rows_that_nobody_asked_for_are_not_looked_at():
    assert read_rows([0, 2, 2**62, 3, 5], [9, 1, 0, 2, 3], [3]) == [[2, 3]]


def test_a_row_that_has_another_length_by_now_is_seen():
    offsets, values, out = np.array([0, 3]), np.arange(5, dtype=np.uint32), np.zeros(9, np.uint32)
    for ends in ([0, 2], [0, 9], [0, 4]):
        assert copy_checked_rows(offsets, values, np.array([0]), 100, np.array(ends), out) == 0
    assert not out.any()
