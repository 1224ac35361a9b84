"""A directory is held by those who read it, and replaced only by one who has it alone."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from pathlib import Path

import pytest

from ecgl_scale.base import hold as hold_module
from ecgl_scale.base.hold import hold_directory
from ecgl_scale.errors import LockedError


def test_many_hold_a_directory_and_nobody_has_it_alone_until_all_others_let_go(tmp_path: Path) -> None:
    first, second, third = (hold_directory(tmp_path) for _ in range(3))
    with pytest.raises(LockedError, match="being read"):
        first.take_alone()
    second.close()
    del third
    gc.collect()
    first.take_alone()
    assert list(tmp_path.iterdir()) == []


def test_a_hold_that_failed_to_be_alone_is_no_obstacle_to_others(tmp_path: Path) -> None:
    first, second = hold_directory(tmp_path), hold_directory(tmp_path)
    with pytest.raises(LockedError):
        first.take_alone()
    first.close()
    second.take_alone()


def test_who_opens_a_directory_that_is_being_replaced_holds_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "store", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    alone = hold_directory(old)
    alone.take_alone()
    inode = new.stat().st_ino

    def replace(_: float) -> None:
        old.rename(tmp_path / "old")
        new.rename(old)

    monkeypatch.setattr(hold_module.time, "sleep", replace)
    held = hold_directory(old)
    assert held._descriptor is not None
    assert os.fstat(held._descriptor).st_ino == inode


def test_a_directory_that_others_have_alone_for_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = hold_directory(tmp_path)
    alone.take_alone()
    monkeypatch.setattr(hold_module, "MOST_WAITED_SECONDS", 0.02)
    with pytest.raises(LockedError, match="being replaced"):
        hold_directory(tmp_path)


def test_where_nothing_can_be_held_reading_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))

    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    held, missing = hold_directory(tmp_path), hold_directory(tmp_path / "missing")
    held.take_alone()
    missing.take_alone()
    assert (held._descriptor, missing._descriptor) == (None, None)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
