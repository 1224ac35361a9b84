"""What a store that has grown consists of: the head names its generations, each with a manifest of its own.

``manifest.json`` is the head, small and replaced as a whole. ``generations/0000.json`` is the manifest of the first
ingest, byte for byte; ``generations/0001/manifest.json`` and so on name what one append has added, by names that are
relative to their own directory. The head has size and crc32c of every one of them, and each has the crc32c of the one
before, so no two chains are taken for one another. ``grow`` (in ``compose``) makes one manifest of them all.

A writer makes a ``GenerationManifest``, writes it into the directory of its generation, and then replaces the head::

    entry = generation.write(directory, after)          # after = grow(before, generation): the graph as it is now
    Head((*head.generations, entry)).write(store)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ecgl_scale._version import __version__
from ecgl_scale.base.durable import crc32c_of, write_atomically
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.store.format import (
    FORMAT,
    MANIFEST_NAME,
    NODES_NAME,
    FeatureSection,
    FileRecord,
    KeySection,
    Manifest,
    check_features,
    check_names,
    read_parts,
)
from ecgl_scale.store.signed_json import decode_signed, encode_signed, read_section, typed, without_none
from ecgl_scale.store.source import Json

HEAD_VERSION = 2
GENERATION_FORMAT = "ecgl-generation"
GENERATION_VERSION = 1
GENERATIONS_DIRECTORY = "generations"
OLDER_DIRECTORY = "older"
DROPPED_NAME = "dropped.arrow"
BASE_NAME = f"{GENERATIONS_DIRECTORY}/0000.json"
MAX_GENERATIONS = 10_000

_OPTIONAL = ("keys", "class_names", "dropped")
_GENERATION = re.compile(r"\d{4}")


def generation_folder(number: int) -> str:
    """Where the files of an append lie below the store."""
    return f"{GENERATIONS_DIRECTORY}/{number:04d}"


def manifest_name(number: int) -> str:
    """Where the manifest of a generation lies below the store."""
    return BASE_NAME if number == 0 else f"{generation_folder(number)}/{MANIFEST_NAME}"


def is_generation(name: str) -> bool:
    """Whether a directory in ``generations`` is named as one: of the store, of a later reader, or left over."""
    return _GENERATION.fullmatch(name) is not None


@dataclass(frozen=True)
class HeadEntry:
    """One generation as the head has it; the counts are of the graph up to here."""

    manifest: str
    size_bytes: int
    crc32c: int
    num_nodes: int
    num_edges: int

    @classmethod
    def of(cls, number: int, raw: bytes, after: Manifest) -> HeadEntry:
        """The entry of generation ``number``, whose manifest has these bytes; ``after`` is the graph it makes."""
        return cls(manifest_name(number), len(raw), crc32c_of(raw), after.num_nodes, after.edges.num_edges)

    def vouches_for(self, raw: bytes) -> bool:
        """Whether these are the bytes that the head was written for."""
        return len(raw) == self.size_bytes and crc32c_of(raw) == self.crc32c


@dataclass(frozen=True)
class Head:
    """The generations of a store in order; a store that never grew has one, and no head on disk."""

    generations: tuple[HeadEntry, ...]

    def encode(self) -> str:
        """The text of the head, as it is in a store."""
        entries = [asdict(entry) for entry in self.generations]
        return encode_signed({"format": FORMAT, "format_version": HEAD_VERSION, "generations": entries})

    def write(self, store: Path) -> None:
        """Replace the head, atomically: from here on the store has these generations."""
        write_atomically(store / MANIFEST_NAME, self.encode())

    @classmethod
    def from_body(cls, body: Mapping[str, Any], path: AnyPath) -> Head:
        """Check a head whose checksum was good: made by hand, it could still name anything."""
        try:
            if set(body) != {"format", "format_version", "generations", "checksum"}:
                raise ValueError(f"the head has keys {sorted(body)}")
            entries = tuple(read_section(HeadEntry, entry) for entry in typed(list, body["generations"]))
            if not 2 <= len(entries) <= MAX_GENERATIONS:
                raise ValueError(f"the head names {len(entries)} generations")
            for number, entry in enumerate(entries):
                if entry.manifest != manifest_name(number):
                    raise ValueError(f"generation {number} is {entry.manifest!r:.100}, not {manifest_name(number)}")
            for before, after in pairwise(entries):
                if after.num_nodes < before.num_nodes:
                    raise ValueError(f"{after.manifest} has less than the generation before")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _senseless(error, path) from error
        return cls(entries)


@dataclass(frozen=True)
class GenerationEdges:
    """The edges that an append has added."""

    num_edges: int
    """All of them: in blocks of its own, and into rows of older blocks."""
    id_dtype: str
    """A graph with the nodes of this generation has such ids."""
    input_edges: int
    dropped_self_loops: int
    dropped_duplicates: int
    block_starts: list[int]
    """First row of every block of its own, as rows of the whole graph, and at the end the number of nodes; empty where
    all new rows belong to the last older block."""
    block_edges: list[int]


@dataclass(frozen=True)
class OlderEdges:
    """Edges into rows that older blocks hold.

    A file of them has two columns, ``dst`` and ``src``, sorted by block of ``dst``, then range of 2**16 of ``src``,
    then ``dst``, then ``src``: the order of tiles.
    """

    blocks: list[int]
    """Which blocks of the graph before have any, ascending."""
    block_edges: list[int]
    """How many, at least one each."""
    file_blocks: list[int]
    """How many of these blocks, one after the other, are in each file."""


@dataclass(frozen=True)
class DroppedNodes:
    """Nodes that are no longer in the graph, though their rows are: ``dropped.arrow`` has their ids, ascending."""

    num_nodes: int
    """Nodes that this generation drops, and no earlier one has."""
    blocks: list[int]
    """Which blocks of the graph before lose edges, ascending."""
    block_edges: list[int]
    """How many, at least one each."""


@dataclass(frozen=True)
class GenerationManifest:
    """What one append has added to the graph before it."""

    number: int
    parent_crc32c: int
    """The manifest of the generation before has this crc32c."""
    num_new_nodes: int
    edges: GenerationEdges
    older: OlderEdges
    features: FeatureSection | None
    """The new rows alone; None where there are no new rows, or no features."""
    columns: dict[str, str]
    """Those of the new rows; empty where there are none."""
    num_classes: int | None
    """The graph up to here has so many."""
    provenance: dict[str, Json]
    files: dict[str, FileRecord]
    written_by: str = field(default=f"ecgl_scale {__version__}")
    keys: KeySection | None = None
    class_names: list[str] | None = None
    """All classes up to here have these names."""
    dropped: DroppedNodes | None = None

    @property
    def folder(self) -> str:
        """Where its files lie below the store."""
        return generation_folder(self.number)

    def encode(self) -> str:
        """The text of the manifest, as it is in the generation's directory."""
        body = without_none(self, *_OPTIONAL)
        return encode_signed({"format": GENERATION_FORMAT, "format_version": GENERATION_VERSION, **body})

    def write(self, directory: Path, after: Manifest) -> HeadEntry:
        """Write the manifest into ``directory``, wherever that is until it gets its name; gives the head's entry."""
        text = self.encode()
        write_atomically(directory / MANIFEST_NAME, text)
        return HeadEntry.of(self.number, text.encode(), after)

    @classmethod
    def parse(cls, raw: bytes, path: AnyPath) -> GenerationManifest:
        """Check the bytes of a generation's manifest that was read from ``path``."""
        body = decode_signed(raw, path, form=GENERATION_FORMAT, versions=(GENERATION_VERSION,))
        try:
            generation = cls(
                number=typed(int, body["number"]),
                parent_crc32c=typed(int, body["parent_crc32c"]),
                num_new_nodes=typed(int, body["num_new_nodes"]),
                edges=read_section(GenerationEdges, body["edges"]),
                older=read_section(OlderEdges, body["older"]),
                **read_parts(body, path),
                dropped=read_section(DroppedNodes, body["dropped"]) if "dropped" in body else None,
            )
            _check_sense(generation)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _senseless(error, path) from error
        return generation


def _check_sense(generation: GenerationManifest) -> None:
    """Refuse numbers that no append has; whether they fit the graph before is seen when they are composed."""
    edges, older = generation.edges, generation.older
    if generation.num_new_nodes < 0 or generation.number < 1:
        raise ValueError(f"generation {generation.number} adds {generation.num_new_nodes} nodes")
    if len(edges.block_edges) != max(len(edges.block_starts) - 1, 0) or min(edges.block_edges, default=0) < 0:
        raise ValueError("the blocks are not in order")
    if len(older.blocks) != len(older.block_edges) or min(older.block_edges, default=1) < 1:
        raise ValueError("the edges into older rows are not counted block by block")
    if min(older.file_blocks, default=1) < 1 or sum(older.file_blocks) != len(older.blocks):
        raise ValueError("the files of edges into older rows do not hold their blocks")
    if any(first >= last for first, last in pairwise(older.blocks)):
        raise ValueError("the edges into older rows are not in the order of their blocks")
    if sum(edges.block_edges) + sum(older.block_edges) != edges.num_edges:
        raise ValueError(f"the blocks do not add up to {edges.num_edges} edges")
    if (NODES_NAME in generation.files) != bool(generation.columns) or (
        generation.columns and not generation.num_new_nodes
    ):
        raise ValueError(f"node columns and {NODES_NAME} do not belong together")
    check_names(generation.keys, generation.class_names, generation.num_classes, generation.files)
    if generation.features is not None:
        check_features(generation.features, generation.num_new_nodes, generation.files)
    _check_dropped(generation)


def _check_dropped(generation: GenerationManifest) -> None:
    dropped = generation.dropped
    if (DROPPED_NAME in generation.files) != (dropped is not None):
        raise ValueError(f"dropped nodes and {DROPPED_NAME} do not belong together")
    if dropped is None:
        return
    if generation.num_new_nodes or generation.edges.num_edges or dropped.num_nodes < 1:
        raise ValueError("it drops no nodes, or adds something besides")
    if len(dropped.blocks) != len(dropped.block_edges) or min(dropped.block_edges, default=1) < 1:
        raise ValueError("the edges that go are not counted block by block")
    if any(first >= last for first, last in pairwise(dropped.blocks)):
        raise ValueError("the edges that go are not in the order of their blocks")


def _senseless(error: Exception, path: AnyPath) -> CorruptStoreError:
    if isinstance(error, CorruptStoreError):
        return error
    return CorruptStoreError(f"the manifest lacks something or holds a wrong value: {error}", where=path)
