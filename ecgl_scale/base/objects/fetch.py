"""An object as a stream of ranges, several on their way at once, and as a file that is whole or not there."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ecgl_scale.base.durable import WrittenFile, crc32c_of, fsync_directory, storage_errors
from ecgl_scale.base.objects.client import NoObjectError, ObjectClient
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.units import MIB

RANGE_BYTES = 4 * MIB
RANGES_AHEAD = 4
"""Ranges on their way while one is used. Memory of a reader: five ranges."""


def read_ranges(client: ObjectClient, name: str, size_bytes: int) -> Iterator[memoryview]:
    """The object front to back, in ranges; fewer bytes than ``size_bytes`` where it is shorter."""
    starts = iter(range(0, size_bytes, RANGE_BYTES))
    coming: deque[Future[memoryview]] = deque()
    with ThreadPoolExecutor(RANGES_AHEAD, thread_name_prefix="fetch") as pool:

        def ask() -> None:
            for start in starts:
                coming.append(pool.submit(client.read, name, start, min(RANGE_BYTES, size_bytes - start)))
                return

        try:
            for _ in range(RANGES_AHEAD):
                ask()
            while coming:
                part = coming.popleft().result()
                ask()
                yield part
        finally:
            for left in coming:
                left.cancel()


def check_object(client: ObjectClient, name: str, expected: WrittenFile) -> None:
    """Compare every byte of an object with what was written, keeping none. Memory: five ranges."""
    crc = found_bytes = 0
    for part in _parts(client, name, expected):
        crc = crc32c_of(part, crc)
        found_bytes += len(part)
    _require_same(client, name, WrittenFile(found_bytes, crc), expected)


def fetch_file(client: ObjectClient, name: str, expected: WrittenFile, target: Path) -> bool:
    """Make ``target`` a checked copy of the object, unless it is there; other processes may want the same.

    Returns whether it was fetched. Memory: five ranges.
    """
    partial = target.with_name(f".{target.name}.partial")
    with storage_errors(target, needed_bytes=expected.size_bytes):
        target.parent.mkdir(parents=True, exist_ok=True)
        while not _is_there(target, expected):
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Whoever held it has finished the file, or failed and left it to us.
                if not _has_name(descriptor, partial) or _is_there(target, expected):
                    continue
                _fetch_into(descriptor, client, name, expected)
                partial.replace(target)
                fsync_directory(target.parent)
                return True
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
    return False


def _fetch_into(descriptor: int, client: ObjectClient, name: str, expected: WrittenFile) -> None:
    os.ftruncate(descriptor, 0)
    crc = position = 0
    for part in _parts(client, name, expected):
        crc = crc32c_of(part, crc)
        position += _write_at(descriptor, part, position)
    _require_same(client, name, WrittenFile(position, crc), expected)
    os.fsync(descriptor)


def _write_at(descriptor: int, data: memoryview, position: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], position + done)
    return done


def _parts(client: ObjectClient, name: str, expected: WrittenFile) -> Iterator[memoryview]:
    try:
        yield from filter(len, read_ranges(client, name, expected.size_bytes))
    except NoObjectError as error:
        raise CorruptStoreError("an object of the store is gone", where=error.where, fix=_FIX) from error


def _require_same(client: ObjectClient, name: str, found: WrittenFile, expected: WrittenFile) -> None:
    if found.size_bytes != expected.size_bytes:
        how = f"has {found.size_bytes:,} bytes, the manifest says {expected.size_bytes:,}"
    elif found.crc32c != expected.crc32c:
        how = "does not have the bytes that were written"
    else:
        return
    raise CorruptStoreError(f"an object of the store {how}", where=client.url / name, fix=_FIX)


_FIX = "open the store again if it was replaced meanwhile; else put the object again from a good store"


def _is_there(target: Path, expected: WrittenFile) -> bool:
    try:
        return target.lstat().st_size == expected.size_bytes
    except FileNotFoundError:
        return False


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
