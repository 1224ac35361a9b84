"""Places for the rows that blocks make: memory of this process, or files that every worker sees.

In memory a place is an array. In files it is one file for each run of rows that is written at once: a worker writes a
whole file under another name, makes it durable and renames it, so nobody ever writes into a file that another has
open, and a block that is done twice leaves the same bytes. (One large file that all write into by position would need
a file system that keeps parts of a page apart; NFS does not.) A file ends with the crc32c of its rows, which is
compared when they are read. Which files there are follows from the cuts, so nobody looks for names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.durable import atomic_file, crc32c_of, fsync_directory, fsync_file, storage_errors
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import CorruptStoreError, EcglError

if TYPE_CHECKING:
    from ecgl_scale.engine.resources import Resources

CRC_BYTES = 4


class Place(Protocol):
    """Rows of all blocks: ``[num_rows]`` or ``[num_rows, width]``."""

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Put rows in their place, from row ``start`` on."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``start`` up to ``stop``: a view, or a copy where they are in files."""
        ...

    def room(self, start: int, stop: int) -> NDArray[Any]:
        """An array to fill and then to ``write``: the rows themselves, as they were left, or zeros for a file."""
        ...

    def describe(self) -> Json:
        """So that ``open_place`` finds it in another process."""
        ...


@dataclass(frozen=True, eq=False)
class HeldPlace:
    """Rows in the memory of this process."""

    rows: NDArray[Any]

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Copy the rows, unless they are there already."""
        target = self.rows[start : start + len(rows)]
        if not np.shares_memory(target, rows):
            target[:] = rows

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a view of the rows."""
        return self.rows[start:stop]

    room = read

    def describe(self) -> Json:
        """Memory cannot be described: an executor that shares none is never given it."""
        raise EcglError("rows in memory cannot be sent to another process")


@dataclass(frozen=True)
class FilePlace:
    """Rows in a directory, a file for each run of rows from one cut to the next."""

    directory: Path
    cuts: tuple[int, ...]
    """Where files begin, and the number of rows."""
    dtype: str
    width: int | None = None
    is_durable: bool = True
    """Whether each file is on the disk when it is written; else ``sync`` sees to it, for all of them at once."""

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write whole files; ``start`` and the end of ``rows`` are cuts."""
        first = self.cuts.index(start)
        while start - self.cuts[first] < len(rows) and first < len(self.cuts) - 1:
            stop = self.cuts[first + 1]
            if stop > start + len(rows):
                break
            self._write_file(self.cuts[first], np.ascontiguousarray(rows[self.cuts[first] - start : stop - start]))
            first += 1
            if stop == start + len(rows):
                return
        raise EcglError(f"rows {start} to {start + len(rows)} do not end where files do", where=self.directory)

    def _write_file(self, first: int, rows: NDArray[Any]) -> None:
        path = self._path(first)
        content = rows.astype(self.dtype, copy=False)
        with storage_errors(path):
            self.directory.mkdir(parents=True, exist_ok=True)
        with (
            atomic_file(path, needed_bytes=content.nbytes, is_shared=True, is_durable=self.is_durable) as partial,
            partial.open("wb") as file,
        ):
            file.write(content.data)
            file.write(crc32c_of(content).to_bytes(CRC_BYTES, "little"))

    def sync(self) -> None:
        """See to it that all files are on the disk."""
        with storage_errors(self.directory):
            for first in self.cuts[:-1]:
                fsync_file(self._path(first))
            fsync_directory(self.directory)

    def _path(self, first: int) -> Path:
        return self.directory / f"{first}.rows"

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of the rows, compared with what was written. Memory: as ``read_into``, and the rows."""
        rows = self.room(start, stop)
        self.read_into(start, rows)
        return rows

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with the rows from ``start`` on. Memory: none, but one file where a part of it is asked for."""
        stop = start + len(out)
        for index in self._files(start, stop):
            first, last = self.cuts[index], self.cuts[index + 1]
            if start <= first and last <= stop:
                self._read_file(index, out[first - start : last - start])
                continue
            rows = self.room(first, last)
            self._read_file(index, rows)
            low, high = max(first, start), min(last, stop)
            out[low - start : high - start] = rows[low - first : high - first]

    def _files(self, start: int, stop: int) -> range:
        """The files that hold these rows."""
        return range(bisect_right(self.cuts, start) - 1, bisect_left(self.cuts, stop)) if start < stop else range(0)

    def file_bytes(self, start: int, stop: int) -> int:
        """Bytes of the files that hold these rows."""
        files = self._files(start, stop)
        num_rows = sum(self.cuts[index + 1] - self.cuts[index] for index in files)
        return num_rows * self._row_bytes + len(files) * CRC_BYTES

    @property
    def _row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize) * (1 if self.width is None else self.width)

    def room(self, start: int, stop: int) -> NDArray[Any]:
        """Return zeros: what is to be a file is filled in memory first."""
        return _zeros(stop - start, self.dtype, self.width)

    def _read_file(self, index: int, rows: NDArray[Any]) -> None:
        """Read a whole file into ``rows``."""
        path, content = self._path(self.cuts[index]), rows.reshape(-1).view(np.uint8).data
        with storage_errors(path), path.open("rb", buffering=0) as file:
            num_read = 0
            while num_read < len(content) and (taken := file.readinto(content[num_read:])):
                num_read += taken
            crc = file.read(CRC_BYTES + 1)
        if num_read < len(content) or crc != crc32c_of(content).to_bytes(CRC_BYTES, "little"):
            raise CorruptStoreError("rows of a block are not as they were written", where=path)

    def describe(self) -> Json:
        """Directory, cuts and type."""
        return {**asdict(self), "directory": str(self.directory), "cuts": list(self.cuts)}


def open_place(description: Json) -> FilePlace:
    """A place in files that another process has described."""
    return FilePlace(**{**description, "directory": Path(description["directory"]), "cuts": tuple(description["cuts"])})


def make_place(
    resources: Resources, name: str, cuts: Sequence[int], dtype: str, width: int | None = None
) -> HeldPlace | FilePlace:
    """Rows from ``cuts[0] = 0`` to ``cuts[-1]``: in memory where the executor shares it, else in files.

    Memory: the rows, or nothing. In files ``name`` is a directory below the resources' own. A job that is killed makes
    them anew, so they need not reach the disk: who notes them in a journal sees to it by ``sync``.
    """
    if resources.executor.shares_memory:
        return HeldPlace(_zeros(cuts[-1], dtype, width))
    return FilePlace(shared_directory(resources, name), tuple(cuts), dtype, width, is_durable=False)


def shared_directory(resources: Resources, name: str) -> Path:
    """A directory that all workers see; it is made with the first file in it."""
    if resources.work is None:
        raise EcglError(f"{name} has no directory that all workers see", expected="resources with a working directory")
    return resources.work / name


def _zeros(num_rows: int, dtype: str, width: int | None) -> NDArray[Any]:
    """Rows in memory that is given back as soon as it is dropped; the system gives new memory as zeros."""
    shape = (num_rows,) if width is None else (num_rows, width)
    kind = np.dtype(dtype)
    return aligned_bytes(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)
