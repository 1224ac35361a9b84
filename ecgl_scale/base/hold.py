"""Readers keep the directory that they opened: each holds it, and who wants to replace it asks for it alone.

What is held is the directory itself (``flock``), so no file is made, a directory that may only be read can be held too,
and the kernel lets go of it when the holder ends, however it ends. Where a system has no such locks, nothing is held.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

from ecgl_scale.errors import LockedError

WAIT_SECONDS = 0.01
MOST_WAITED_SECONDS = 10.0
"""Who has a directory alone is about to rename it."""


class Hold:
    """A directory that stays as it is while this object lives, or until ``close``."""

    def __init__(self, directory: Path, descriptor: int | None) -> None:
        self.directory = directory
        self._descriptor = descriptor
        self._finalizer = None if descriptor is None else weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        """Let go of the directory."""
        if self._finalizer is not None:
            self._finalizer()

    def take_alone(self, *, waited_seconds: float = 0.0) -> None:
        """Hold the directory alone from here on, or say that others hold it."""
        if self._descriptor is None:
            return
        deadline = time.monotonic() + waited_seconds
        while not _try_lock(self._descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LockedError(
                    "the store is being read",
                    where=self.directory,
                    expected="nobody who has it open, in this process or in another one",
                    fix="wait for runs, rankings and predictions on it to end, close what holds it, and try again",
                )
            time.sleep(WAIT_SECONDS)


def hold_directory(directory: Path) -> Hold:
    """Hold what is at ``directory`` now. If nothing can be held there, whoever reads it will find out what is wrong."""
    deadline = time.monotonic() + MOST_WAITED_SECONDS
    while True:
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return Hold(directory, None)
        hold = Hold(directory, descriptor)
        try:
            is_held = _try_lock(descriptor, fcntl.LOCK_SH)
            # Another directory may have taken the name between our open and our lock.
            if is_held and os.path.samestat(os.fstat(descriptor), os.stat(directory)):  # noqa: PTH116
                return hold
        except OSError:
            hold.close()
            return Hold(directory, None)
        hold.close()
        if time.monotonic() > deadline:
            raise LockedError(
                "the store is being replaced", where=directory, fix="wait for the command that compacts it to end"
            )
        time.sleep(WAIT_SECONDS)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
