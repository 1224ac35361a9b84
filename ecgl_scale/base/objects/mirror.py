"""A bounded copy, on a local disk, of what was fetched from object stores; several processes share it.

    ECGL_CACHE_DIR    where it is; default: ecgl_scale in XDG_CACHE_HOME, or in ~/.cache
    ECGL_CACHE_SIZE   the most that it may hold; default: half of the disk space that is free or its own

    stores/KEY/       files of one store; KEY is a digest of its manifest, so another content is another directory
    building/KEY/     a store that is built here and put to its URL when it is finished
    runs/KEY/         a run that is written here and put to its URL as it goes on

A store is let in as a whole before its first file is fetched: room is made for all of it, by removing the stores that
were used least recently. A store that any process has open is never removed: it is locked until that process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.base.durable import free_bytes, storage_errors
from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.units import format_bytes, parse_bytes

DIRECTORY_VARIABLE = "ECGL_CACHE_DIR"
SIZE_VARIABLE = "ECGL_CACHE_SIZE"
ABOUT_NAME = ".about.json"
LOCK_NAME = ".lock"


@dataclass(frozen=True)
class _Kept:
    """A store in the mirror that is not the one to be let in."""

    path: Path
    size_bytes: int
    promised_bytes: int
    """What it takes when all its files are there."""
    used_at: float
    is_in_use: bool

    @property
    def held_bytes(self) -> int:
        """What may be counted on not to be free."""
        return max(self.promised_bytes, self.size_bytes) if self.is_in_use else self.size_bytes


class Mirrored:
    """The directory of one store in the mirror, kept there until this object is closed or forgotten."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.close = weakref.finalize(self, os.close, lock)


@dataclass(frozen=True)
class Mirror:
    """The mirror of this machine."""

    root: Path
    max_bytes: int | None = None
    """None: half of the disk space that is free or the mirror's own."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Mirror:
        """The mirror that the user's settings name."""
        usual = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ecgl_scale"
        size = environment.get(SIZE_VARIABLE)
        try:
            max_bytes = None if not size else parse_bytes(size)
        except UsageError as error:
            raise UsageError(f"{SIZE_VARIABLE}: {error.what}", expected=error.expected, fix=error.fix) from error
        return cls(Path(environment.get(DIRECTORY_VARIABLE) or usual).absolute(), max_bytes)

    def admit(self, key: str, url: ObjectUrl, size_bytes: int) -> Mirrored:
        """Make room for a store of this size and give its directory, in which its files may be put one by one.

        Raises
        ------
        DoesNotFitError
            The store is larger than the mirror may be, or than what stores in use and the disk leave of it.
        """
        path = self.root / "stores" / key
        with storage_errors(path), self._locked():
            self._make_room(url, size_bytes, _size_of(path), self._others(path))
            path.mkdir(exist_ok=True)
            (path / ABOUT_NAME).write_text(json.dumps({"url": str(url), "size_bytes": size_bytes}), encoding="utf-8")
            lock = _open_lock(path)
            fcntl.flock(lock, fcntl.LOCK_SH)  # at once: only those who hold our other lock ever ask for more
            os.utime(path / LOCK_NAME)
        return Mirrored(path, lock)

    def adopt(self, key: str, url: ObjectUrl, built: Path, size_bytes: int) -> None:
        """Take a directory over, if there is room and nobody was quicker, instead of fetching what was just put."""
        path = self.root / "stores" / key
        with storage_errors(path), self._locked():
            if path.exists():
                return
            try:
                self._make_room(url, size_bytes, size_bytes, self._others(path))
            except DoesNotFitError:
                return
            (built / ABOUT_NAME).write_text(json.dumps({"url": str(url), "size_bytes": size_bytes}), encoding="utf-8")
            built.rename(path)
            os.close(_open_lock(path))

    def place_for(self, kind: str, url: ObjectUrl) -> Path:
        """A directory of its own for what is made here and put to ``url`` later: the same each time."""
        return self.root / kind / hashlib.sha256(str(url).encode()).hexdigest()[:24]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        (self.root / "stores").mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _open_lock(self.root)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _others(self, path: Path) -> list[_Kept]:
        return [self._look(other) for other in sorted(path.parent.iterdir()) if other != path and other.is_dir()]

    def _look(self, path: Path) -> _Kept:
        lock = _open_lock(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_in_use = False
        except BlockingIOError:
            is_in_use = True
        finally:
            used_at = os.fstat(lock).st_mtime
            os.close(lock)
        return _Kept(path, _size_of(path), _promised_bytes(path), used_at, is_in_use)

    def _make_room(self, url: ObjectUrl, size_bytes: int, there_bytes: int, others: list[_Kept]) -> None:
        free = free_bytes(self.root)
        own = there_bytes + sum(other.size_bytes for other in others)
        most = (free + own) // 2 if self.max_bytes is None else self.max_bytes
        in_use = sum(other.held_bytes for other in others if other.is_in_use)
        idle = sorted((other for other in others if not other.is_in_use), key=lambda other: other.used_at)
        idle_bytes = sum(other.held_bytes for other in idle)
        if size_bytes + in_use > most or size_bytes - there_bytes > free + idle_bytes:
            used = f", of which stores in use have {format_bytes(in_use)}" if in_use else ""
            raise DoesNotFitError(
                f"the store does not fit into the local copy: it takes {format_bytes(size_bytes)}, and there may be"
                f" {format_bytes(most)}{used}; {format_bytes(free)} of the disk are free",
                where=f"{url}, to be kept in {self.root}",
                fix=f"set {SIZE_VARIABLE} to more, or {DIRECTORY_VARIABLE} to a directory on a larger disk",
            )
        for other in idle:
            if size_bytes + in_use + idle_bytes <= most and size_bytes - there_bytes <= free:
                return
            shutil.rmtree(other.path, ignore_errors=True)
            idle_bytes -= other.held_bytes
            free += other.held_bytes


def _open_lock(directory: Path) -> int:
    return os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)


def _promised_bytes(path: Path) -> int:
    try:
        return int(json.loads((path / ABOUT_NAME).read_text(encoding="utf-8"))["size_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _size_of(path: Path) -> int:
    """Bytes of all files below a directory that others may be adding to; 0 where there is none."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += Path(directory, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total
