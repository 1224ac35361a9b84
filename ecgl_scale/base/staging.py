"""A directory that takes its final name only when everything in it is finished and durable."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ecgl_scale.base.durable import fsync_directory, storage_errors
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.base.output_file import refuse_inside_store
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, StoreError, StoreExistsError, UsageError

REFUSALS = (UsageError, InvalidInputError, StoreError, DoesNotFitError)
"""Errors that a job would meet again, however often it is tried."""


class Staging:
    """A directory beside the target, owned by this process alone, that becomes the target in one rename.

    A killed process leaves the directory behind; the next one to stage the same target removes it. With ``job``, the
    name of a job that keeps a journal in the directory, the next one of the same job goes on in it, and a stop or a
    failure that may pass leaves it too. Each job has a directory of its own: workers of another one that nobody has
    told of its end may still be writing to theirs.
    ``overwrite`` replaces an empty directory, or one that holds the file ``marker``; never what somebody else made.
    """

    def __init__(self, target: Path, *, marker: str, overwrite: bool = False, job: str | None = None) -> None:
        require_directory(target, what="a directory to build", fix="build it here, or through build_store_at")
        self.target = target.absolute()
        self._base = _base_of(self.target)
        self.path = self._base if job is None else self._base.with_name(f"{self._base.name}-{job}")
        self._job = job
        self._marker = marker
        self._overwrite = overwrite
        self._lock: int | None = None

    def __enter__(self) -> Staging:
        try:
            with storage_errors(self.target), uninterrupted():
                self._refuse_existing()
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = take_lock(lock_path_of(self.target), target=self.target)
                for left in _left_behind(self._base):
                    if self._job is None or left != self.path:
                        shutil.rmtree(left, ignore_errors=True)
                self.path.mkdir(exist_ok=self._job is not None)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _refuse_existing(self) -> None:
        refuse_inside_store(self.target)
        if not os.path.lexists(self.target):
            return
        if not self._overwrite:
            raise StoreExistsError(
                "the target already exists", where=self.target, fix="choose another path, or pass --overwrite"
            )
        replaceable = self.target.is_dir() and not self.target.is_symlink()
        if not replaceable or (any(self.target.iterdir()) and not (self.target / self._marker).is_file()):
            raise StoreExistsError(
                "the target exists and is nothing we wrote", where=self.target, fix="choose another path, or remove it"
            )

    def commit(self, before_swap: Callable[[], None] = lambda: None) -> None:
        """Put the finished directory in the target's place; ``before_swap``, the last to be asked, may refuse it."""
        with storage_errors(self.target):
            for directory, _, _ in os.walk(self.path):
                fsync_directory(Path(directory))
            before_swap()
            if self._overwrite and self.target.exists():
                exchange(self.path, self.target)
            else:
                self.path.rename(self.target)
            fsync_directory(self.target.parent)

    def __exit__(self, *failure: object) -> None:
        if self._lock is None:
            return  # what is there belongs to somebody else
        may_go_on = self._job is not None and any(failure) and not isinstance(failure[1], REFUSALS)
        with uninterrupted():
            # After an exchange this is the old store; after a failure, the half-built one.
            if not may_go_on:
                shutil.rmtree(self.path, ignore_errors=True)
            lock_path_of(self.target).unlink(missing_ok=True)
            os.close(self._lock)


def lock_path_of(target: Path) -> Path:
    """The lock of all who write a directory, as a whole or a part of it: beside it, as it may not be there yet."""
    base = _base_of(target.absolute())
    return base.with_name(f"{base.name}.lock")


def _base_of(target: Path) -> Path:
    return target.parent / f".{target.name}.building"


def remove_leftovers(target: Path, *, marker: str) -> None:
    """Remove what a killed process has left beside a target that needs nothing else, unless somebody writes it now."""
    staging = Staging(target, marker=marker, overwrite=True)
    if any(left.exists() for left in (lock_path_of(target), *_left_behind(staging._base))):
        with staging:
            pass


def _left_behind(base: Path) -> list[Path]:
    return [base, *base.parent.glob(f"{glob.escape(base.name)}-{16 * '?'}")]


def exchange(new: Path, old: Path) -> None:
    """Swap two names in one step (renameat2 with RENAME_EXCHANGE), so that a kill leaves one of the two whole."""
    at_cwd, rename_exchange = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_cwd, os.fsencode(new), at_cwd, os.fsencode(old), rename_exchange) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(old))
