"""What a directory can do that stores, runs and workers need: tried out, not read from a table of file systems."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.base.disk_speed import measure_disk
from ecgl_scale.base.durable import storage_errors

NEEDED = ("rename", "flock")
"""Without these a store or a run cannot be written safely."""


@dataclass(frozen=True)
class DirectoryReport:
    """What was tried, and how fast it was."""

    rename: bool
    """Whether a file takes the place of another in one step."""
    flock: bool
    """Whether a second process would be kept out."""
    map: bool
    """Whether files can be mapped."""
    direct: bool
    """Whether files can be read past the page cache; where not, they are read through it."""
    free_bytes: int
    write_bytes_per_second: float
    read_bytes_per_second: float

    @property
    def missing(self) -> list[str]:
        """What is needed and cannot be done here."""
        return [name for name in NEEDED if not getattr(self, name)]


def try_directory(directory: Path, num_bytes: int) -> DirectoryReport:
    """Try what is needed in ``directory``, with a file of so many bytes; nothing of it stays."""
    with storage_errors(directory), tempfile.TemporaryDirectory(prefix=".ecgl-try-", dir=directory) as folder:
        tried = {name: _works(attempt, Path(folder)) for name, attempt in ATTEMPTS.items()}
        speed = measure_disk(Path(folder), num_bytes)
    return DirectoryReport(
        **tried,
        free_bytes=shutil.disk_usage(directory).free,
        write_bytes_per_second=speed.write,
        read_bytes_per_second=speed.read,
    )


def _works(attempt: Callable[[Path], bool], folder: Path) -> bool:
    try:
        return attempt(folder)
    except OSError:
        return False


def _rename(folder: Path) -> bool:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    (folder / "new").rename(folder / "old")
    return (folder / "old").read_bytes() == b"new" and not (folder / "new").exists()


def _flock(folder: Path) -> bool:
    first, second = (os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
    finally:
        os.close(first)
        os.close(second)


def _map(folder: Path) -> bool:
    (folder / "mapped").write_bytes(b"mapped")
    with (folder / "mapped").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped[:] == b"mapped"


def _direct(folder: Path) -> bool:
    os.close(os.open(folder / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    return True


ATTEMPTS: dict[str, Callable[[Path], bool]] = {"rename": _rename, "flock": _flock, "map": _map, "direct": _direct}
