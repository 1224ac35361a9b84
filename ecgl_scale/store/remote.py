"""A store on an object store: its manifest and its listing are compared at once, its files are fetched when asked for.

A file comes in ranges, is compared with the manifest's size and crc32c on its way, and is then a file of the local
mirror, which is read and mapped as any other. What nobody asks for is never fetched.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.hold import Hold
from ecgl_scale.base.objects.client import ObjectClient
from ecgl_scale.base.objects.fetch import check_object, fetch_file
from ecgl_scale.base.objects.mirror import Mirror, Mirrored
from ecgl_scale.base.objects.url import AnyPath, ObjectUrl
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError
from ecgl_scale.store.compose import is_beside, manifest_names
from ecgl_scale.store.files import LocalFiles, StoreFiles
from ecgl_scale.store.format import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    encode_manifest,
    probe_windows,
)
from ecgl_scale.store.view import split_address

UPLOAD_NAME = ".uploading"
"""Names what is being put, so that a rerun knows what of an interrupted upload it may replace."""
FETCHES_AT_ONCE = 2
"""Files that come at the same time. Memory: 20 MiB each."""


def is_taken(location: AnyPath) -> bool:
    """Whether a store, good or bad, or anything else on a disk, is in the way of a new one."""
    if isinstance(location, Path):
        return location.exists()
    return ObjectClient(location).has(MANIFEST_NAME)


def check_objects(url: ObjectUrl, manifest: Manifest) -> None:
    """Compare the listing with the manifest: exactly its objects, of the right size. Reads none of them."""
    found = ObjectClient(url).list()
    for name, record in manifest.files.items():
        if name not in found:
            raise IncompleteStoreError("an object of the store is missing", where=url / name, fix=_PUT_AGAIN)
        if found[name].size_bytes != record.size_bytes:
            how = f"has {found[name].size_bytes:,} bytes, the manifest says {record.size_bytes:,}"
            raise CorruptStoreError(f"an object of the store {how}", where=url / name, fix=_PUT_AGAIN)
    others = found.keys() - manifest.files.keys() - manifest_names(manifest) - {UPLOAD_NAME}
    strangers = sorted(name for name in others if not is_beside(name, manifest))
    if strangers:
        raise CorruptStoreError(
            "the store holds something its manifest does not name",
            where=url / strangers[0],
            fix="remove it, or build the store again",
        )


def check_probes(url: ObjectUrl, manifest: Manifest) -> None:
    """Compare the probes of every object: up to sixteen requests each."""
    client = ObjectClient(url)
    for name, record in manifest.files.items():
        crc = 0
        for part in client.read_windows(name, probe_windows(record.size_bytes)) if record.size_bytes else []:
            crc = crc32c_of(part, crc)
        if crc != record.probe:
            how = "is not the one that was written (swapped, stale or damaged)"
            raise CorruptStoreError(f"an object of the store {how}", where=url / name, fix=_PUT_AGAIN)


_PUT_AGAIN = "put it again from a good store, or build the store again"


def files_of(location: AnyPath, manifest: Manifest, hold: Hold | None = None) -> StoreFiles:
    """The files of a store; for one elsewhere, room for all of them is made in the local mirror."""
    if isinstance(location, Path):
        return LocalFiles(location, hold)
    mirrored = Mirror.from_environment().admit(mirror_key(manifest), location, manifest.total_bytes)
    return MirroredFiles(location, mirrored, manifest.files)


def mirror_key(manifest: Manifest) -> str:
    """The name of a store's directory in the mirror: all that is in the store, wherever it came from."""
    return hashlib.sha256(encode_manifest(manifest).encode()).hexdigest()[:24]


class MirroredFiles(StoreFiles):
    """Files of a store elsewhere, fetched when first asked for."""

    def __init__(self, url: ObjectUrl, mirrored: Mirrored, records: Mapping[str, FileRecord]) -> None:
        self.location = url
        self.directory = mirrored.path
        self._mirrored = mirrored  # keeps the directory from being removed
        self._client = ObjectClient(url)
        self._records = records
        self._next = {name: after for name, after in pairwise(sorted(records)) if _folder(name) == _folder(after)}
        self._before = {after: name for name, after in self._next.items()}
        self._asked: set[str] = set()
        self._there: set[str] = set()
        self._compared: set[str] = set()
        self._turns = threading.Semaphore(FETCHES_AT_ONCE)
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="fetch-ahead")

    def path(self, name: str) -> Path:
        """The file, fetched and checked; the one after it, where files are asked for in order, is fetched meanwhile."""
        if name not in self._asked:
            self._asked.add(name)
            after, before = self._next.get(name), self._before.get(name)
            if after is not None and (before is None or before in self._asked):
                self._ahead.submit(self._fetch, after)
        if name not in self._there:
            self._fetch(name)
        return self.directory / name

    def inside(self, folder: str) -> StoreFiles:
        """The files of a folder."""
        return _FolderOfMirrored(self, folder)

    def check(self, name: str) -> None:
        """Compare every byte of an object with the manifest; where it is not here yet, it is fetched by that."""
        self._fetch(name)
        if name not in self._compared:
            check_object(self._client, name, self._records[name].written)

    def _fetch(self, name: str) -> None:
        with self._turns:
            if fetch_file(self._client, name, self._records[name].written, self.directory / name):
                self._compared.add(name)
        self._there.add(name)


class _FolderOfMirrored(StoreFiles):
    def __init__(self, files: MirroredFiles, folder: str) -> None:
        self.location = files.location / folder
        self.directory = files.directory / folder
        self._files = files
        self._folder = folder

    def path(self, name: str) -> Path:
        return self._files.path(f"{self._folder}/{name}")

    def inside(self, folder: str) -> StoreFiles:
        return _FolderOfMirrored(self._files, f"{self._folder}/{folder}")


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def manifest_files(location: AnyPath) -> list[Path]:
    """Files by which workers are asked whether they see the store; a URL is the same for all."""
    store = split_address(location)[0]
    return [store / MANIFEST_NAME] if isinstance(store, Path) else []
