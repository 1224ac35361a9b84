"""What a directory can do is tried, and what it cannot do is said."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from ecgl_scale.base.try_directory import try_directory
from ecgl_scale.errors import EcglError
from ecgl_scale.units import MIB


def test_a_directory_of_this_machine_can_do_what_is_needed_and_is_left_as_it_was(tmp_path: Path) -> None:
    found = try_directory(tmp_path, 4 * MIB)
    assert (found.rename, found.flock, found.map, found.missing) == (True, True, True, [])
    assert found.free_bytes > 0
    assert min(found.write_bytes_per_second, found.read_bytes_per_second) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", ["refuses", "lets everybody in"])
def test_a_directory_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    def flock(descriptor: int, operation: int) -> None:
        if answer == "refuses":  # as Lustre does without its mount option
            raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    found = try_directory(tmp_path, 4 * MIB)
    assert (found.flock, found.missing) == (False, ["flock"])


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EcglError):
        try_directory(tmp_path / "none", 4 * MIB)
