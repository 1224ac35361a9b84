"""Rows of different lengths in one file: an uncompressed Arrow IPC file with a single ``large_list`` column.

Its offsets buffer is a CSR ``indptr`` (int64), its values buffer the ``indices``; mapped, both are numpy views without
a copy. Edges (a row = a destination's sources) and tiles (a row = a tile's packed edges) are both kept this way.
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import DurableWriter, WrittenFile, crc32c_of, storage_errors
from ecgl_scale.errors import IncompleteStoreError
from ecgl_scale.store.checked import corrupt

WHOLE_FROM_SHARE = 8
"""A file is read, and compared with its crc32c, as a whole where one in so many of its rows is wanted."""


@dataclass(frozen=True)
class Ragged:
    """``values[offsets[i]:offsets[i + 1]]`` is row ``i``; read-only views of a mapped file."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    values_start: int = 0
    """Where the values begin in the file, for readers that go past the map."""


def write_ragged(
    path: Path, offsets: NDArray[np.int64], values: NDArray[Any], metadata: Mapping[str, str]
) -> WrittenFile:
    """Write one file; ``values`` may itself be a mapped scratch file, it is never copied whole.

    Memory: two write buffers.
    """
    column = pa.LargeListArray.from_arrays(as_arrow(offsets, np.int64), as_arrow(values))
    schema = pa.schema([pa.field("rows", column.type)], metadata=dict(metadata))
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            writer.write_batch(pa.record_batch([column], schema=schema))
        return sink.finish()


def read_ragged(path: Path, expected: WrittenFile, *, check_crc: bool, is_streamed: bool = False) -> Ragged:
    """Map one file; its size is always compared with the manifest, its crc32c where asked.

    ``is_streamed``: the values will be read past the map, so looking at the offsets must not bring them in.
    """
    mapped = map_sparingly(path, expected) if is_streamed else map_checked(path, expected, check_crc=check_crc)
    map_address = mapped.read_buffer(1).address
    try:
        column = pa.ipc.open_file(mapped).get_batch(0).column(0)
        offsets, values = as_numpy(column.offsets), as_numpy(column.values)
    except (pa.ArrowException, IndexError, AttributeError) as error:
        raise corrupt(path, f"is not a ragged Arrow file: {error}") from error
    return Ragged(offsets, values, values.ctypes.data - map_address if values.size else 0)


def map_checked(path: Path, expected: WrittenFile, *, check_crc: bool) -> pa.MemoryMappedFile:
    """Map a file of the store read-only after comparing it with the manifest."""
    check_size(path, expected)
    with storage_errors(path):
        mapped = pa.memory_map(str(path))
    if check_crc:
        if crc32c_of(mapped.read_buffer()) != expected.crc32c:
            raise corrupt(path, "does not have the bytes that were written")
        mapped.seek(0)
    return mapped


def map_sparingly(path: Path, expected: WrittenFile) -> pa.BufferReader:
    """Map a file without the system's read-ahead, which is megabytes at each place that is looked at."""
    check_size(path, expected)
    with storage_errors(path), path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return pa.BufferReader(pa.py_buffer(mapped))


def check_size(path: Path, expected: WrittenFile) -> None:
    """Refuse a file that is a link, missing or of another size: reading past a mapped file's end would crash us."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IncompleteStoreError("a file of the store is missing", where=path, fix="build the store again") from error
    if not stat.S_ISREG(status.st_mode):
        raise corrupt(path, "is a link or not a plain file")
    if status.st_size != expected.size_bytes:
        raise corrupt(path, f"has {status.st_size:,} bytes, the manifest says {expected.size_bytes:,}")
