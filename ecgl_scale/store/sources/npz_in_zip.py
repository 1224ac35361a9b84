"""An .npz inside a published zip, streamed without unpacking the zip.

A zip usually keeps an .npz as it is (stored), and then its arrays are read in place through a view of that stretch of
the outer file. A deflated one would have to be decompressed anew for every array: it is copied once to the cache.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.sources.archive import Archive, PublishedFiles, check_members, require_member
from ecgl_scale.store.sources.npy import MAX_DEFLATE_RATIO, NpzFile, member_start, open_npz, reading
from ecgl_scale.store.sources.npy_header import NpyHeader, ObjectArrayError, read_header


def open_published_npz(files: PublishedFiles, name: str, *, cache: Path, skip_objects: bool = False) -> NpzFile:
    """Open one .npz of a published folder, wherever it lies."""
    if files.archive is not None:
        stretch = stored_range(files.archive, files.prefix + name)
        if stretch is not None:
            return _open_in_place(files, name, *stretch, skip_objects=skip_objects)
    return open_npz(files.unpack(name, cache), skip_objects=skip_objects)


def stored_range(archive: Archive, name: str) -> tuple[int, int] | None:
    """Offset and size of a member kept uncompressed; None for a deflated one."""
    info = require_member(archive, name)
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    where = f"{archive.path}, member {name}"
    with reading(where), archive.path.open("rb") as file:
        return member_start(file, info, where), info.file_size


class FileView(io.RawIOBase):
    """A stretch of a file that looks like a file of its own."""

    def __init__(self, path: Path, offset: int, size_bytes: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset = offset
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        """A stretch can always be read."""
        return True

    def seekable(self) -> bool:
        """Any place in a stretch can be reached."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Fill ``buffer`` from the current position, never past the end of the stretch."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size_bytes - self._position))
        found = os.preadv(self._file.fileno(), [view[:wanted]], self._offset + self._position)
        self._position += found
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move within the stretch."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            # what zipfile expects when it looks for its tail in a file that is too short
            raise OSError(22, "Invalid argument")
        self._position = base + offset
        return self._position

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        super().close()


@dataclass(frozen=True)
class _NpzInPlace(NpzFile):
    """An .npz that is a stretch of another file."""

    inside: str = ""
    size_bytes: int = 0

    def where(self, name: str) -> str:
        return f"{self.inside}, array {name}"

    @contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        view = FileView(self.path, self.offset, self.size_bytes)
        with io.BufferedReader(view, 1 << 20) as file, zipfile.ZipFile(file) as archive:
            yield archive


def _open_in_place(files: PublishedFiles, name: str, offset: int, size_bytes: int, *, skip_objects: bool) -> NpzFile:
    inside = files.origin(name)
    members: dict[str, NpyHeader] = {}
    skipped: list[str] = []
    with reading(inside), FileView(files.root, offset, size_bytes) as view, zipfile.ZipFile(view) as archive:
        # Constant arrays in an .npz reach any ratio deflate can, and are streamed, never unpacked.
        infos = check_members(archive.infolist(), where=inside, zip_bytes=size_bytes, max_ratio=MAX_DEFLATE_RATIO)
        for entry_name, entry in infos.items():
            array = entry_name.removesuffix(".npy")
            where = f"{inside}, array {array}"
            with reading(where), archive.open(entry) as stream:
                try:
                    header = read_header(stream, where)
                except ObjectArrayError:
                    if not skip_objects:
                        raise
                    skipped.append(array)
                    continue
            if entry.file_size != header.header_bytes + header.nbytes:
                raise InvalidInputError(
                    f"the array's size, {entry.file_size} bytes, is not what its header says",
                    where=where,
                    expected=f"{header.header_bytes + header.nbytes} bytes for shape {header.shape} of {header.dtype}",
                )
            members[array] = header
    return _NpzInPlace(files.root, members, tuple(skipped), offset, inside, size_bytes)
