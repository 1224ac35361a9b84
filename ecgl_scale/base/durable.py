"""Files that are either whole or not there.

``atomic_file`` is the one way to a file that appears whole: another name, fsync, rename, fsync of the directory.
``DurableWriter`` writes one large file from start to end, past the page cache where the file system allows it
(O_DIRECT: on a build larger than memory the page cache only costs copies and evictions), with size and crc32c taken on
the way; for files under an atomic name, or in a staging directory, which takes its own name in one rename.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import numpy as np

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.direct import SECTOR_BYTES, open_direct, round_up, write_all
from ecgl_scale.errors import EcglError, InvalidInputError, StorageError
from ecgl_scale.units import MIB, format_bytes

WRITE_BUFFER_BYTES = 4 * MIB

_DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE, errno.ENODEV}


@dataclass(frozen=True)
class WrittenFile:
    """What was written, as the manifest records it."""

    size_bytes: int
    crc32c: int


@contextmanager
def storage_errors(path: Path, *, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an ``OSError`` inside into one of ours, with the path and the free space."""
    try:
        yield
    except EcglError:
        raise
    except OSError as error:
        raise as_storage_error(error, path, needed_bytes=needed_bytes) from error


def as_storage_error(error: OSError, path: Path, *, needed_bytes: int | None = None) -> EcglError:
    """Our error for an ``OSError``: a disk that fails is exit 5, a path the user may not use is exit 3."""
    reason = error.strerror or str(error)
    if error.errno in _DISK_FAILURES:
        needed = "" if needed_bytes is None else f", {format_bytes(needed_bytes)} needed"
        return StorageError(
            f"the disk refused: {reason}",
            where=f"{path} ({format_bytes(free_bytes(path))} free{needed})",
            fix="free some space, or choose a target on another disk, then run the same command again",
        )
    return InvalidInputError(f"cannot use this path: {reason}", where=path, fix="check the path and its permissions")


def free_bytes(path: Path) -> int:
    """Free space where ``path`` is or would be; 0 where that cannot be told."""
    for candidate in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(candidate).free
        except OSError:
            continue
    return 0


def crc32c_of(data: Any, crc: int = 0) -> int:
    """crc32c of any contiguous buffer, continued from ``crc``, without copying it."""
    return int(crc32c.crc32c(np.frombuffer(data, dtype=np.uint8).data, crc))


def fsync_directory(path: Path) -> None:
    """Make the names inside ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(
    path: Path, *, needed_bytes: int | None = None, is_shared: bool = False, is_durable: bool = True
) -> Iterator[Path]:
    """Give a name beside ``path``; what is written there takes the name ``path``, durably, when the ``with`` ends.

    An error inside leaves ``path`` as it was and nothing beside it. ``is_shared``: other processes may be writing the
    same file, so the name is this process's own; else a kill leaves a name that the next writer uses again. Without
    ``is_durable`` the file is whole for every process, and on the disk when the caller sees to it.
    """
    own = f"{socket.gethostname()}-{os.getpid()}." if is_shared else ""
    partial = path.with_name(f".{path.name}.{own}partial")
    with storage_errors(path, needed_bytes=needed_bytes):
        try:
            partial.unlink(missing_ok=True)
            yield partial
            if is_durable:
                fsync_file(partial)
            partial.replace(path)
            if is_durable:
                fsync_directory(path.absolute().parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, text: str) -> WrittenFile:
    """Write a small text file that appears whole or not at all."""
    encoded = text.encode()
    with atomic_file(path, needed_bytes=len(encoded)) as partial:
        partial.write_bytes(encoded)
    return WrittenFile(len(encoded), crc32c_of(encoded))


class DurableWriter:
    """Writes one large file front to back, taking size and crc32c; one buffer is written while the next is filled.

    It has the few methods pyarrow asks of a file. Memory: two buffers of ``WRITE_BUFFER_BYTES``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self._size_bytes = 0
        self._crc32c = 0
        self._buffers = [aligned_bytes(WRITE_BUFFER_BYTES), aligned_bytes(WRITE_BUFFER_BYTES)]
        self._filled = 0
        self._background = ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._pending: Future[None] | None = None
        with storage_errors(path):
            self._descriptor = open_direct(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def write(self, data: Any) -> int:
        """Append ``data`` (any contiguous buffer)."""
        incoming = np.frombuffer(data, dtype=np.uint8) if memoryview(data).nbytes else np.empty(0, np.uint8)
        self._crc32c = crc32c_of(incoming, self._crc32c)
        position = 0
        while position < incoming.size:
            take = min(incoming.size - position, WRITE_BUFFER_BYTES - self._filled)
            self._buffers[0][self._filled : self._filled + take] = incoming[position : position + take]
            self._filled += take
            position += take
            if self._filled == WRITE_BUFFER_BYTES:
                self._flush_buffer()
        self._size_bytes += incoming.size
        return int(incoming.size)

    def _flush_buffer(self) -> None:
        self._wait()
        padded = round_up(self._filled, SECTOR_BYTES)
        self._buffers[0][self._filled : padded] = 0
        self._pending = self._background.submit(write_all, self._descriptor, self._buffers[0][:padded])
        self._buffers.reverse()
        self._filled = 0

    def _wait(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            with storage_errors(self.path, needed_bytes=WRITE_BUFFER_BYTES):
                pending.result()

    def flush(self) -> None:
        """Do nothing: data is durable after ``finish``, not before."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def finish(self) -> WrittenFile:
        """Write the rest, cut the padding, fsync and close."""
        try:
            if self._filled:
                self._flush_buffer()
            self._wait()
            with storage_errors(self.path):
                os.ftruncate(self._descriptor, self._size_bytes)
                os.fsync(self._descriptor)
        finally:
            self.close()
        return WrittenFile(self._size_bytes, self._crc32c)

    def close(self) -> None:
        """Close the file, finished or not."""
        if not self.closed:
            self.closed = True
            self._background.shutdown(wait=True)
            os.close(self._descriptor)

    def __enter__(self) -> DurableWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
