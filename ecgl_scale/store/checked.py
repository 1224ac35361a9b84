"""Row ids and files of a store, looked at before they are used: ids that exist, files as the manifest has them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import WrittenFile, storage_errors
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import CorruptStoreError, UsageError

T = TypeVar("T")


def checked_ids(ids: Any, num_rows: int) -> NDArray[np.int64]:
    """Row ids as int64, or a ``UsageError`` that names the first one out of range."""
    given = np.asarray(ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError("row ids must be a list of integers", where=f"{given.dtype} array of shape {given.shape}")
    # Before the cast, as uint64 ids past 2^63 would come out negative.
    outside = (given < 0) | (given >= num_rows)
    if outside.any():
        position = int(np.argmax(outside))
        raise UsageError(
            f"row {given[position]} does not exist", where=f"ids[{position}]", expected=f"0 <= id < {num_rows}"
        )
    return given.astype(np.int64, copy=False)


def expected_file(expected: Mapping[str, T], name: str, directory: AnyPath) -> T:
    """What the manifest says of a file, which it must name."""
    if name not in expected:
        raise CorruptStoreError("the manifest does not name a file it should", where=directory / name)
    return expected[name]


@contextmanager
def open_expected(path: Path, expected: WrittenFile) -> Iterator[int]:
    """Open a file of a store for reading; it must be there, be no link and have the manifest's size."""
    with storage_errors(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or path.is_symlink():
                raise corrupt(path, "is missing or is a link") from error
            raise
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes != expected.size_bytes:
                raise corrupt(path, f"has {size_bytes} bytes, the manifest says {expected.size_bytes}")
            yield descriptor
        finally:
            os.close(descriptor)


def read_exactly(descriptor: int, buffers: list[Any], offset: int) -> bool:
    """Fill the byte buffers from the file, in one call where the system gives all at once; False at its end."""
    if os.preadv(descriptor, buffers, offset) == sum(len(buffer) for buffer in buffers):
        return True
    for buffer in buffers:
        done = 0
        while done < len(buffer):
            got = os.preadv(descriptor, [buffer[done:]], offset + done)
            if got == 0:
                return False
            done += got
        offset += done
    return True


def corrupt(path: AnyPath, how: str) -> CorruptStoreError:
    """The error for a file that is not as it was written."""
    return CorruptStoreError(
        f"a file of the store {how}", where=path, fix="copy it again from a good store, or build the store again"
    )
