"""Zip files from strangers, and the published folders inside them.

``open_archive`` reads the table of contents and refuses the whole zip if any member climbs out, is absolute, a link or
a device, encrypted, or declared larger than a cap or than its compressed bytes can honestly hold. Members are streamed;
``extract_member`` copies one of them through a small buffer to a checked place. Memory: one copy buffer.
"""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from ecgl_scale.base.durable import atomic_file, free_bytes, storage_errors
from ecgl_scale.errors import DoesNotFitError, InvalidInputError
from ecgl_scale.units import GIB, MIB, format_bytes

MAX_TOTAL_BYTES = 512 * GIB
"""Everything in one archive together; papers100M, the largest published one, has about 85 GiB."""

MAX_RATIO = 200
"""Deflate can reach 1032; published archives hold csv.gz and npz and stay below 20."""

SMALL_BYTES = 64 * MIB
"""Below this a high ratio does no harm."""

COPY_BYTES = 4 * MIB
_READABLE_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


@dataclass(frozen=True)
class Archive:
    """A zip whose members have all been checked."""

    path: Path
    members: Mapping[str, zipfile.ZipInfo]


@contextmanager
def zip_errors(path: Path, member: str | None = None) -> Iterator[None]:
    """Turn what zipfile raises on a damaged archive into our error."""
    where = path if member is None else f"{path}, member {member}"
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"the zip is damaged: {error}", where=where, expected="a whole zip file", fix="fetch the file again"
        ) from error


def open_archive(path: Path, *, max_total_bytes: int = MAX_TOTAL_BYTES) -> Archive:
    """Read and check the table of contents; nothing is unpacked."""
    if not path.is_file():
        raise InvalidInputError("there is no such file", where=path, expected="a zip file")
    with zip_errors(path), storage_errors(path), zipfile.ZipFile(path) as opened:
        infos = opened.infolist()
    members = check_members(infos, where=str(path), zip_bytes=path.stat().st_size, max_total_bytes=max_total_bytes)
    return Archive(path, members)


def check_members(
    infos: Iterable[zipfile.ZipInfo],
    *,
    where: str,
    zip_bytes: int,
    max_total_bytes: int = MAX_TOTAL_BYTES,
    max_ratio: int = MAX_RATIO,
) -> dict[str, zipfile.ZipInfo]:
    """The plain files of a table of contents by name, or an error if any entry is not to be trusted."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        _check_member(info, f"{where}, member {info.filename!r}", max_ratio)
        if info.is_dir():
            continue
        if info.filename in members:
            raise InvalidInputError("the zip holds the same name twice", where=f"{where}, member {info.filename}")
        members[info.filename] = info
    total_bytes = sum(info.file_size for info in members.values())
    if total_bytes > max_total_bytes:
        raise InvalidInputError(
            f"the zip declares {format_bytes(total_bytes)} of contents",
            where=where,
            expected=f"at most {format_bytes(max_total_bytes)}",
        )
    # Members that share compressed bytes are how a small zip declares petabytes at a modest ratio each.
    if sum(info.compress_size for info in members.values()) > zip_bytes:
        raise InvalidInputError("members of the zip overlap", where=where, expected="each member with bytes of its own")
    return members


def _check_member(info: zipfile.ZipInfo, where: str, max_ratio: int) -> None:
    # orig_filename: zipfile itself cuts a name at NUL, which would hide what is written in the file.
    name = info.orig_filename
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or ":" in parts[0]:
        raise InvalidInputError(
            "a member's path leaves the archive", where=where, expected="relative paths without '..'"
        )
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidInputError("a member is a link or a device", where=where, expected="plain files")
    if info.flag_bits & 0x1:
        raise InvalidInputError("a member is encrypted", where=where, expected="plain files")
    if info.compress_type not in _READABLE_METHODS:
        raise InvalidInputError(
            f"unknown compression method {info.compress_type}", where=where, expected="stored or deflated"
        )
    if info.file_size > SMALL_BYTES and info.file_size > max_ratio * max(info.compress_size, 1):
        raise InvalidInputError(
            f"a member of {format_bytes(info.compress_size)} claims to unpack to {format_bytes(info.file_size)}",
            where=where,
            expected=f"a ratio of at most {max_ratio}",
            fix="this looks like a zip bomb: do not use the file",
        )


def open_member(archive: Archive, name: str) -> IO[bytes]:
    """Open one member for reading from its start; zipfile stops at the declared size and checks the crc at the end."""
    require_member(archive, name)
    with zip_errors(archive.path, name), storage_errors(archive.path), zipfile.ZipFile(archive.path) as opened:
        # The member keeps the file open after the ZipFile is closed.
        return opened.open(name)


def extract_member(archive: Archive, name: str, target: Path, *, max_bytes: int = MAX_TOTAL_BYTES) -> Path:
    """Copy one member to ``target``, a path of the caller's, whole or not at all; kept if already there."""
    info = require_member(archive, name)
    if target.is_file() and target.stat().st_size == info.file_size:
        return target
    where = f"{archive.path}, member {name}"
    if info.file_size > max_bytes:
        raise InvalidInputError(
            f"the member holds {format_bytes(info.file_size)}",
            where=where,
            expected=f"at most {format_bytes(max_bytes)}",
        )
    free = free_bytes(target)
    if info.file_size > free:
        raise DoesNotFitError(
            f"unpacking needs {format_bytes(info.file_size)}, the disk has {format_bytes(free)} free",
            where=f"{where}, to {target}",
            fix="choose a cache directory on another disk, or unpack the zip by hand and give the directory",
        )
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(target, needed_bytes=info.file_size, is_shared=True) as partial,
        open_member(archive, name) as member,
        partial.open("wb") as file,
        zip_errors(archive.path, name),
    ):
        shutil.copyfileobj(member, file, COPY_BYTES)
    return target


def require_member(archive: Archive, name: str) -> zipfile.ZipInfo:
    """The member's entry, or an error that names it."""
    if name not in archive.members:
        raise InvalidInputError("the zip lacks a file", where=archive.path, expected=name)
    return archive.members[name]


@dataclass(frozen=True)
class PublishedFiles:
    """A published folder: a directory on disk, or a prefix inside a checked zip."""

    root: Path
    prefix: str = ""
    archive: Archive | None = field(default=None, repr=False)

    @property
    def folder_name(self) -> str:
        """What the folder is called where it lies."""
        return PurePosixPath(self.prefix).name or (self.root.stem if self.archive else self.root.absolute().name)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        if self.archive is not None:
            return self.prefix + name in self.archive.members
        return (self.root / name).is_file()

    def origin(self, name: str) -> str:
        """The file as messages name it."""
        return f"{self.root}, member {self.prefix}{name}" if self.archive else str(self.root / name)

    def open(self, name: str) -> BinaryIO | IO[bytes]:
        """Open one file for reading."""
        if self.archive is not None:
            return open_member(self.archive, self.prefix + name)
        if not self.has(name):
            raise InvalidInputError("a file of the published layout is missing", where=self.root, expected=name)
        with storage_errors(self.root / name):
            return (self.root / name).open("rb")

    def subfolders(self, name: str) -> list[str]:
        """Folders right below ``name``."""
        if self.archive is None:
            inside = self.root / name
            return sorted(path.name for path in inside.iterdir() if path.is_dir()) if inside.is_dir() else []
        start = f"{self.prefix}{name}/"
        tails = (member.removeprefix(start) for member in self.archive.members if member.startswith(start))
        return sorted({tail.partition("/")[0] for tail in tails if "/" in tail})

    def unpack(self, name: str, cache: Path) -> Path:
        """The file as a path on disk; a zip's member is copied to ``cache``, under a name made of its checksum."""
        if self.archive is None:
            if not self.has(name):
                raise InvalidInputError("a file of the published layout is missing", where=self.root, expected=name)
            return self.root / name
        info = require_member(self.archive, self.prefix + name)
        target = cache / "unpacked" / f"{info.CRC:08x}-{info.file_size}-{PurePosixPath(name).name}"
        return extract_member(self.archive, self.prefix + name, target)
