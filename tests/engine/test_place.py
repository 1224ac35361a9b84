"""Rows in memory and in files: the same rows, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine.place import FilePlace, HeldPlace, open_place
from ecgl_scale.errors import CorruptStoreError, EcglError

CUTS = (0, 4, 10, 11, 20)


def made(
    directory: Path, width: int | None = None
) -> tuple[FilePlace, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    shape = (20,) if width is None else (20, width)
    rows = np.random.default_rng(0).random(shape).astype(np.float32)
    place = FilePlace(directory, CUTS, "float32", width)
    for first, last in ((4, 10), (0, 4), (10, 20)):
        place.write(first, rows[first:last])
    return place, rows


@given(st.integers(0, 20), st.integers(0, 20))
def test_any_rows_can_be_read_back(a: int, b: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        for width in (None, 3):
            place, rows = made(Path(directory, str(width)), width)
            first, last = min(a, b), max(a, b)
            np.testing.assert_array_equal(open_place(place.describe()).read(first, last), rows[first:last])


def test_rows_that_do_not_end_at_a_cut_are_refused(tmp_path: Path) -> None:
    place, rows = made(tmp_path)
    with pytest.raises(EcglError, match="do not end where files do"):
        place.write(0, rows[:5])


@pytest.mark.parametrize("at", [0, 7, 15, 16, 19])
def test_a_flipped_bit_is_found(at: int, tmp_path: Path) -> None:
    place, _ = made(tmp_path)
    path = tmp_path / "0.rows"
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="not as they were written"):
        place.read(2, 3)
    assert place.read(4, 20).size == 16


def test_a_short_file_is_found(tmp_path: Path) -> None:
    place, _ = made(tmp_path)
    path = tmp_path / "4.rows"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptStoreError):
        place.read(0, 20)


def test_writing_rows_that_lie_in_their_place_copies_nothing() -> None:
    place = HeldPlace(np.zeros(5, np.float32))
    part = place.read(1, 3)
    part[:] = 7
    place.write(1, part)
    np.testing.assert_array_equal(place.rows, [0, 7, 7, 0, 0])


def test_whole_files_are_read_into_an_array_without_a_second_copy(tmp_path: Path) -> None:
    num_rows, num_files = 1 << 20, 4
    place = FilePlace(tmp_path, tuple(range(0, num_files * num_rows + 1, num_rows)), "float64", is_durable=False)
    rows = np.arange(num_files * num_rows, dtype=np.float64)
    place.write(0, rows)
    out = np.ones(rows.size)
    before = own_memory_bytes()
    with PeakSampler(0.0005) as sampler:
        place.read_into(0, out)
    assert sampler.peak_bytes - before < out.nbytes // num_files // 2, "a file was in memory besides"
    np.testing.assert_array_equal(out, rows)


def test_the_bytes_of_files_are_those_on_the_disk(tmp_path: Path) -> None:
    for width in (None, 3):
        place, _ = made(tmp_path / str(width), width)
        sizes = [path.stat().st_size for path in place.directory.iterdir()]
        assert place.file_bytes(0, 20) == sum(sizes)
        assert place.file_bytes(5, 11) == sum((place.directory / f"{first}.rows").stat().st_size for first in (4, 10))
        assert place.file_bytes(5, 5) == 0
