"""Ragged files: what comes back from the map, and what looking at one brings into memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.rank.tile_stream import _is_resident
from ecgl_scale.store.ragged import read_ragged, write_ragged

NUM_VALUES = 6 << 20


@pytest.mark.parametrize("is_streamed", [False, True])
def test_rows_come_back_and_the_place_of_the_values_is_right(tmp_path: Path, is_streamed: bool) -> None:
    offsets, values = np.array([0, 3, 3, 7], np.int64), np.arange(7, dtype=np.uint32)
    written = write_ragged(tmp_path / "rows.arrow", offsets, values, {})
    found = read_ragged(tmp_path / "rows.arrow", written, check_crc=False, is_streamed=is_streamed)
    assert np.array_equal(found.offsets, offsets)
    assert np.array_equal(found.values, values)
    stored = (tmp_path / "rows.arrow").read_bytes()
    assert stored[found.values_start : found.values_start + 28] == values.tobytes()


def test_a_streamed_file_is_not_read_ahead_when_its_offsets_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    values = np.arange(NUM_VALUES, dtype=np.uint32)
    written = write_ragged(path, np.array([0, NUM_VALUES], np.int64), values, {})
    descriptor = os.open(path, os.O_RDONLY)
    os.fdatasync(descriptor)  # pages that are not on the disk stay in memory
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    found = read_ragged(path, written, check_crc=False, is_streamed=True)
    if _is_resident(found.values):
        pytest.skip("this file system keeps its files in memory")
    assert found.offsets.tolist() == [0, NUM_VALUES]
    assert not _is_resident(found.values[:1024])
    assert not _is_resident(found.values[NUM_VALUES - 4096 : NUM_VALUES - 3072])
