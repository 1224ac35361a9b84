"""Which store, and which generation of it, a reader has opened: an address, the head, and one manifest.

An address is a path or a URL, with ``#generation=N`` at its end where not the newest is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ecgl_scale.base.hold import Hold, hold_directory
from ecgl_scale.base.objects.client import NoObjectError, ObjectClient
from ecgl_scale.base.objects.url import AnyPath, location_of
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError, UsageError
from ecgl_scale.store.compose import address_of, grow
from ecgl_scale.store.format import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    ORDERED_VERSION,
    Manifest,
    read_plain_file,
    read_raw_manifest,
)
from ecgl_scale.store.generation import HEAD_VERSION, GenerationManifest, Head, HeadEntry
from ecgl_scale.store.signed_json import decode_signed

_ADDRESS = re.compile(r"(.+)#generation=(\d{1,4})", re.DOTALL)


@dataclass(frozen=True)
class StoreView:
    """A store as a reader has opened it."""

    location: AnyPath
    head: Head
    """All generations that the store had then, also those after the one that was opened."""
    generation: int
    manifest: Manifest
    """The graph up to ``generation``."""
    hold: Hold | None = field(default=None, compare=False)
    """Nobody takes the files of a store on this machine away while this is there."""

    @property
    def address(self) -> str:
        """What another process, in another working directory, and at any later time, opens the same graph by."""
        return address_of(self.location, self.manifest)


def split_address(given: str | AnyPath) -> tuple[AnyPath, int | None]:
    """Location and generation of an address; None for the newest."""
    found = _ADDRESS.fullmatch(str(given))
    if found is None:
        return location_of(given), None
    return location_of(found[1]), int(found[2])


def read_manifest(address: str | AnyPath) -> Manifest:
    """Read and check the manifest of a store, wherever it is."""
    return read_view(address).manifest


def read_view(address: str | AnyPath, generation: int | None = None) -> StoreView:
    """Read and check the manifests of a store, wherever it is, up to a generation: given, in the address, or newest."""
    location, named = split_address(address)
    hold = hold_directory(location) if isinstance(location, Path) else None
    wanted = named if generation is None else generation
    read, where = _reader(location), location / MANIFEST_NAME
    raw = read(MANIFEST_NAME)
    body = decode_signed(raw, where, form=FORMAT, versions=(FORMAT_VERSION, HEAD_VERSION, ORDERED_VERSION))
    if body["format_version"] != HEAD_VERSION:
        manifest = Manifest.parse(raw, where)
        head = Head((HeadEntry.of(0, raw, manifest),))
        return StoreView(location, head, checked_generation(wanted, head, location), manifest, hold)
    head = Head.from_body(body, where)
    number = checked_generation(wanted, head, location)
    raws = [_vouched(read, entry, location) for entry in head.generations[: number + 1]]
    manifest = Manifest.parse(raws[0], location / head.generations[0].manifest)
    for before, entry, text in zip(head.generations, head.generations[1:], raws[1:], strict=False):
        place = location / entry.manifest
        appended = GenerationManifest.parse(text, place)
        if appended.parent_crc32c != before.crc32c:
            raise CorruptStoreError("a generation follows another one than the head says", where=place)
        manifest = grow(manifest, appended, place)
    if (manifest.num_nodes, manifest.edges.num_edges) != _counts(head.generations[number]):
        raise CorruptStoreError(
            f"the generations make {manifest.num_nodes:,} nodes and {manifest.edges.num_edges:,} edges",
            where=where,
            expected="what the head says of them: {:,} and {:,}".format(*_counts(head.generations[number])),
        )
    return StoreView(location, head, number, manifest, hold)


def _counts(entry: HeadEntry) -> tuple[int, int]:
    return entry.num_nodes, entry.num_edges


def checked_generation(wanted: int | None, head: Head, location: AnyPath) -> int:
    """The number of a generation that the store has; of the newest where none is asked for."""
    newest = len(head.generations) - 1
    if wanted is None:
        return newest
    if not 0 <= wanted <= newest:
        raise UsageError(f"the store has no generation {wanted}", where=location, expected=f"0 to {newest}")
    return wanted


def _vouched(read: Callable[[str], bytes], entry: HeadEntry, location: AnyPath) -> bytes:
    raw = read(entry.manifest)
    if not entry.vouches_for(raw):
        raise CorruptStoreError(
            "the manifest of a generation is not the one that the head was written for", where=location / entry.manifest
        )
    return raw


def _reader(location: AnyPath) -> Callable[[str], bytes]:
    """Reads a manifest by its name below the store."""
    if isinstance(location, Path):
        return lambda name: read_raw_manifest(location) if name == MANIFEST_NAME else read_plain_file(location / name)
    client = ObjectClient(location)

    def read(name: str) -> bytes:
        try:
            return client.read_whole(name, MAX_MANIFEST_BYTES)
        except NoObjectError as error:
            raise IncompleteStoreError(
                "there is no store here: it has no manifest",
                where=location / name,
                expected="what ecgl ingest or generate has put there",
                fix="check the URL; or run the ingest again, if it was stopped before its end",
            ) from error

    return read
