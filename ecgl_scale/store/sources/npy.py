"""Arrays in .npy and .npz files, streamed in bounded blocks and never unpickled.

Opening reads headers only and refuses whatever numpy would need ``allow_pickle`` for, or whose size is not what
its header says. Reading costs one block (plus 1 MiB to decompress); every stream opens its own handle, so streams
may run in several threads. A deflated member is decompressed from its start, wherever the stream begins.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import AnyArray
from ecgl_scale.store.sources.npy_header import NpyHeader, ObjectArrayError, read_header, reading
from ecgl_scale.units import MIB, format_bytes

__all__ = ["Cursor", "NpyFile", "NpyHeader", "NpzFile", "open_npy", "open_npz", "reading"]

MAX_MEMBERS = 10_000
MAX_DEFLATE_RATIO = 1032  # the format's own bound: 258 bytes from two bits
SMALL_ARRAY_BYTES = 64 * MIB
_CHUNK_BYTES = MIB
_LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True)
class Cursor:
    """Reads an array's values one after another, in the file's order."""

    stream: IO[bytes]
    header: NpyHeader
    where: str

    def skip(self, num_items: int) -> None:
        """Read past some values."""
        left = num_items * self.header.dtype.itemsize
        while left > 0:
            left -= self._checked(len(self.stream.read(min(left, _CHUNK_BYTES))))

    def take(self, num_items: int) -> AnyArray:
        """Read the next values as a flat array."""
        raw = np.empty(num_items * self.header.dtype.itemsize, np.uint8)
        with reading(self.where):
            done = 0
            while done < raw.size:
                chunk = self.stream.read(min(raw.size - done, _CHUNK_BYTES))
                raw[done : done + self._checked(len(chunk))] = np.frombuffer(chunk, np.uint8)
                done += len(chunk)
        return raw.view(self.header.stored_dtype).astype(self.header.dtype, copy=False)

    def _checked(self, num_bytes: int) -> int:
        if num_bytes == 0:
            raise InvalidInputError("the array is truncated", where=self.where, expected=f"shape {self.header.shape}")
        return num_bytes


def _stream_flat(cursor: Cursor, start: int, stop: int, max_items: int) -> Iterator[AnyArray]:
    for first in range(start, stop, max(1, max_items)):
        yield cursor.take(min(max(1, max_items), stop - first))


def _stream_rows(cursor: Cursor, max_rows: int) -> Iterator[AnyArray]:
    shape = cursor.header.shape
    if not shape:
        raise InvalidInputError("the array is a single value", where=cursor.where, expected="an array with rows")
    if cursor.header.is_columns:
        whole = _load(cursor, SMALL_ARRAY_BYTES)
        yield from (whole[first : first + max_rows] for first in range(0, shape[0], max_rows))
        return
    row_items = math.prod(shape[1:])
    for first in range(0, shape[0], max_rows):
        num_rows = min(max_rows, shape[0] - first)
        yield cursor.take(num_rows * row_items).reshape((num_rows, *shape[1:]))


def _load(cursor: Cursor, max_bytes: int) -> AnyArray:
    header = cursor.header
    if header.nbytes > max_bytes:
        what = f"the array of {format_bytes(header.nbytes)} is too large to be read whole"
        if header.is_columns:
            what += ", and its Fortran order (column after column) cannot be streamed by rows"
        raise InvalidInputError(
            what,
            where=cursor.where,
            expected=f"at most {format_bytes(max_bytes)}",
            fix="save it in C order, with numpy.ascontiguousarray" if header.is_columns else None,
        )
    order = header.shape[::-1] if header.is_columns else header.shape
    array = cursor.take(header.size).reshape(order)
    return np.ascontiguousarray(array.T) if header.is_columns else array


@dataclass(frozen=True)
class NpyFile:
    """One .npy file, checked against its size."""

    path: Path
    header: NpyHeader

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array, in native byte order."""
        return self.header.dtype

    @contextmanager
    def cursor(self, start: int = 0) -> Iterator[Cursor]:
        """Open a reader of the values from flat position ``start`` on."""
        with ExitStack() as handles:
            with reading(self.path):
                stream = handles.enter_context(self.path.open("rb"))
                stream.seek(self.header.header_bytes + start * self.dtype.itemsize)
            yield Cursor(stream, self.header, str(self.path))

    def blocks(self, max_rows: int) -> Iterator[AnyArray]:
        """Stream the array along its first axis."""
        with self.cursor() as cursor:
            yield from _stream_rows(cursor, max(1, max_rows))

    def flat_blocks(self, start: int, stop: int, max_items: int) -> Iterator[AnyArray]:
        """Stream the values ``start:stop`` of the array in C order, flattened."""
        with self.cursor(0 if self.header.is_columns else start) as cursor:
            yield from _flat(cursor, start, stop, max_items)

    def load(self, max_bytes: int = SMALL_ARRAY_BYTES) -> AnyArray:
        """Read the array whole, if it is no larger than ``max_bytes``."""
        with self.cursor() as cursor:
            return _load(cursor, max_bytes)


def _flat(cursor: Cursor, start: int, stop: int, max_items: int) -> Iterator[AnyArray]:
    if not 0 <= start <= stop <= cursor.header.size:
        raise InvalidInputError(f"there are no values {start}:{stop}", where=cursor.where)
    if cursor.header.is_columns:
        values = _load(cursor, SMALL_ARRAY_BYTES).reshape(-1)
        step = max(1, max_items)
        yield from (values[first : min(first + step, stop)] for first in range(start, stop, step))
    else:
        yield from _stream_flat(cursor, start, stop, max_items)


def open_npy(path: Path) -> NpyFile:
    """Check an .npy file's header and size."""
    path = Path(path)
    with reading(path), path.open("rb") as stream:
        header = read_header(stream, path)
        expected = header.header_bytes + header.nbytes
        found = path.stat().st_size
    if found != expected:
        raise InvalidInputError(
            "the file is truncated" if found < expected else "the file is longer than its header says",
            where=path,
            expected=f"{expected} bytes for shape {header.shape} of {header.dtype}, found {found}",
            fix="fetch or write it again",
        )
    return NpyFile(path, header)


@dataclass(frozen=True)
class StoredArray:
    """An array that lies in a file as it is."""

    offset: int
    """Where its first value lies, in bytes."""
    crc32: int
    """The zip's checksum of its header and values."""
    header_crc32: int


def member_start(file: Any, entry: zipfile.ZipInfo, where: object) -> int:
    """Where the bytes of a stored member begin in its zip."""
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if len(header) != _LOCAL_HEADER_BYTES or header[:4] != b"PK\x03\x04" or entry.compress_size != entry.file_size:
        raise InvalidInputError("the zip is damaged", where=where, fix="fetch the file again")
    # The lengths in the member's own header count: they may differ from the table of contents.
    name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes


@dataclass(frozen=True)
class NpzFile:
    """An .npz file whose members have all been checked by their headers."""

    path: Path
    members: Mapping[str, NpyHeader]
    """Name without .npy: what its header says."""
    skipped: tuple[str, ...] = field(default=())
    """Members left out because they hold pickled objects, where the opener asked for that."""
    offset: int = 0
    """Where the .npz begins in the file."""

    def where(self, name: str) -> str:
        """Name the file and the member, for messages."""
        return f"{self.path}, member {name}.npy"

    def header(self, name: str) -> NpyHeader:
        """Give a member's header, or an error that lists the members there are."""
        if name not in self.members:
            raise InvalidInputError(
                f"there is no array {name!r}", where=self.path, expected=f"one of {', '.join(sorted(self.members))}"
            )
        return self.members[name]

    @contextmanager
    def cursor(self, name: str, start: int = 0) -> Iterator[Cursor]:
        """Open a reader of a member's values from flat position ``start`` on, with a handle of its own."""
        header, where = self.header(name), self.where(name)
        with ExitStack() as handles:
            with reading(where):
                archive = handles.enter_context(self._open())
                stream = handles.enter_context(archive.open(f"{name}.npy"))
                if read_header(stream, where) != header:
                    raise InvalidInputError("the file changed while we read it", where=where)
                cursor = Cursor(stream, header, where)
                cursor.skip(start)
            yield cursor

    @contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        with zipfile.ZipFile(self.path) as archive:
            yield archive

    def stored(self, name: str) -> StoredArray | None:
        """Where a member lies that the zip keeps as it is; None for a deflated one."""
        header, where = self.header(name), self.where(name)
        with reading(where), self._open() as archive:
            entry = archive.getinfo(f"{name}.npy")
            if entry.compress_type != zipfile.ZIP_STORED:
                return None
            file: Any = archive.fp
            start = member_start(file, entry, where)
            file.seek(start)
            head = file.read(header.header_bytes)
        return StoredArray(self.offset + start + header.header_bytes, entry.CRC, zlib.crc32(head))

    def blocks(self, name: str, max_rows: int) -> Iterator[AnyArray]:
        """Stream a member along its first axis."""
        with self.cursor(name) as cursor:
            yield from _stream_rows(cursor, max(1, max_rows))

    def flat_blocks(self, name: str, start: int, stop: int, max_items: int) -> Iterator[AnyArray]:
        """Stream the values ``start:stop`` of a member in C order, flattened."""
        with self.cursor(name, 0 if self.header(name).is_columns else start) as cursor:
            yield from _flat(cursor, start, stop, max_items)

    def load(self, name: str, max_bytes: int = SMALL_ARRAY_BYTES) -> AnyArray:
        """Read a member whole, if it is no larger than ``max_bytes``."""
        with self.cursor(name) as cursor:
            return _load(cursor, max_bytes)


def open_npz(path: Path, *, skip_objects: bool = False) -> NpzFile:
    """Check every member of an .npz file; ``skip_objects`` leaves pickled members out instead of refusing them."""
    path = Path(path)
    members: dict[str, NpyHeader] = {}
    skipped: list[str] = []
    with reading(path):
        if path.stat() and not zipfile.is_zipfile(path):
            raise InvalidInputError(
                "this is not an .npz file", where=path, expected="a zip of .npy arrays, as numpy.savez writes it"
            )
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > MAX_MEMBERS:
                raise InvalidInputError(f"the file has {len(entries)} members", where=path, expected="a few arrays")
            for entry in entries:
                where = f"{path}, member {entry.filename}"
                name = _check_entry(entry, where)
                if name in members or name in skipped:
                    raise InvalidInputError("two members have the same name", where=where)
                with reading(where), archive.open(entry) as stream:
                    try:
                        header = read_header(stream, where)
                    except ObjectArrayError:
                        if not skip_objects:
                            raise
                        skipped.append(name)
                        continue
                _check_size(entry, header, where)
                members[name] = header
    return NpzFile(path, members, tuple(skipped))


def _check_entry(entry: zipfile.ZipInfo, where: str) -> str:
    name = entry.filename
    if name.startswith(("/", "\\")) or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
        raise InvalidInputError("the member's path climbs out of the file", where=where, expected="a plain name")
    if not name.endswith(".npy"):
        raise InvalidInputError("the member is not an .npy array", where=where, expected="NAME.npy")
    if entry.flag_bits & 1:
        raise InvalidInputError("the member is encrypted", where=where, fix="save it without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidInputError(
            f"the member uses unsupported compression {entry.compress_type}", where=where, expected="stored or deflated"
        )
    if entry.file_size > MAX_DEFLATE_RATIO * (entry.compress_size + 64):
        raise InvalidInputError(
            f"the member claims {format_bytes(entry.file_size)} from {format_bytes(entry.compress_size)} of zip data",
            where=where,
            expected="no more than deflate can hold",
        )
    return name.removesuffix(".npy")


def _check_size(entry: zipfile.ZipInfo, header: NpyHeader, where: str) -> None:
    expected = header.header_bytes + header.nbytes
    if entry.file_size != expected:
        raise InvalidInputError(
            f"the member's size, {entry.file_size} bytes, is not what its header says",
            where=where,
            expected=f"{expected} bytes for shape {header.shape} of {header.dtype}",
        )
