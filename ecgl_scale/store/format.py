"""The manifest: what a store holds, file by file. It is written last, so a store without one is not a store.

``manifest.json`` carries the graph's counts, the layout of every part, and for each file its size, the crc32c of all
its bytes and the crc32c of a few pages spread over it (``probe``), which tells swapped or stale files apart at open
without reading everything. The manifest is covered by a checksum of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ecgl_scale._version import __version__
from ecgl_scale.base.durable import WrittenFile, crc32c_of, storage_errors, write_atomically
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError
from ecgl_scale.store.signed_json import decode_signed, encode_signed, read_section, safe_name, typed, without_none
from ecgl_scale.store.source import Json
from ecgl_scale.units import MIB

FORMAT = "ecgl-store"
FORMAT_VERSION = 1
ORDERED_VERSION = 3
"""A store whose tiles have their sources in another order has it: who does not know of that would rank wrongly."""
MANIFEST_NAME = "manifest.json"
EDGES_DIRECTORY = "edges"
TILES_DIRECTORY = "tiles"
DENSE_DIRECTORY = "features.zarr"
SPARSE_DIRECTORY = "features"
NODES_NAME = "nodes.arrow"
ORDER_NAME = "order.arrow"
DEGREE_GROUPS = "degree-groups"
KEYS_NAME, KEY_INDEX_NAME = "keys.arrow", "key-index.arrow"

PROBE_WINDOWS = 16
PROBE_WINDOW_BYTES = 4096
MAX_MANIFEST_BYTES = 256 * MIB
MAX_VALUES = 1 << 60
"""More features than any disk holds; a manifest that claims them would only make our numbers overflow."""


@dataclass(frozen=True)
class FileRecord:
    """One file of the store."""

    size_bytes: int
    crc32c: int
    probe: int
    """crc32c of up to sixteen 4 KiB windows spread evenly over the file, first and last page included."""

    @property
    def written(self) -> WrittenFile:
        """Size and checksum as the writers and readers of single files know them."""
        return WrittenFile(self.size_bytes, self.crc32c)


@dataclass(frozen=True)
class EdgeSection:
    """The edges as a whole."""

    num_edges: int
    id_dtype: str
    symmetrised: bool
    keeps_duplicates: bool
    self_loops: str
    """``dropped``, ``kept`` or ``added`` (every node has exactly one)."""
    input_edges: int
    dropped_self_loops: int
    dropped_duplicates: int
    block_starts: list[int]
    """First row of every block, and at the end the number of nodes; tiles use the same blocks as stripes."""
    block_edges: list[int]


@dataclass(frozen=True)
class FeatureSection:
    """The feature matrix."""

    kind: str
    num_features: int
    dtype: str
    rows_per_block: int
    rows_per_chunk: int
    num_values: int


@dataclass(frozen=True)
class KeySection:
    """The keys of the nodes, which are in files of their own."""

    name: str
    """What the column is called where it came from."""
    type: str
    """``string`` or ``int64``."""


@dataclass(frozen=True)
class Manifest:
    """Everything needed to open a store and to tell that it is whole."""

    num_nodes: int
    edges: EdgeSection
    features: FeatureSection | None
    columns: dict[str, str]
    """Node column -> Arrow type."""
    num_classes: int | None
    provenance: dict[str, Json]
    files: dict[str, FileRecord]
    written_by: str = field(default=f"ecgl_scale {__version__}")
    keys: KeySection | None = None
    """None where nodes have row numbers only; then the manifest does not speak of keys."""
    class_names: list[str] | None = None
    """Names of the classes by their numbers; None, and left out, where classes are numbers without gaps."""
    source_order: str | None = None
    """``degree-groups`` where the tiles' sources are in the order of ``order.arrow``; None, and left out, where they
    have their own numbers."""

    @property
    def total_bytes(self) -> int:
        """Size of all files named here."""
        return sum(record.size_bytes for record in self.files.values())

    def write(self, store: Path) -> None:
        """Write the manifest, atomically: from here on the store is complete."""
        write_atomically(store / MANIFEST_NAME, encode_manifest(self))

    @classmethod
    def read(cls, store: Path) -> Manifest:
        """Read and check the manifest of a store that never grew; every fault is named."""
        return cls.parse(read_raw_manifest(store), store / MANIFEST_NAME)

    @classmethod
    def parse(cls, raw: bytes, path: AnyPath) -> Manifest:
        """Check the bytes of a manifest that was read from ``path``."""
        body = decode_signed(raw, path, form=FORMAT, versions=(FORMAT_VERSION, ORDERED_VERSION))
        return cls._from_json(body, path)

    @classmethod
    def _from_json(cls, body: dict[str, Any], path: AnyPath) -> Manifest:
        # The checksum matched, so this guards against a manifest made by hand, not against accidents.
        try:
            manifest = cls(
                num_nodes=typed(int, body["num_nodes"]),
                edges=read_section(EdgeSection, body["edges"]),
                **read_parts(body, path),
                source_order=typed(str, body["source_order"]) if "source_order" in body else None,
            )
            if (body["format_version"] == ORDERED_VERSION) != (manifest.source_order is not None):
                raise ValueError("the version and the order of sources do not belong together")
            _check_sense(manifest)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, CorruptStoreError):
                raise
            raise CorruptStoreError(
                f"the manifest lacks something or holds a wrong value: {error}", where=path
            ) from error
        return manifest


def read_raw_manifest(store: Path) -> bytes:
    """The bytes of ``manifest.json``, or what there is instead of a store."""
    if not store.is_dir() or store.is_symlink():
        raise IncompleteStoreError(
            "there is no store here", where=store, expected="a directory made by ecgl ingest or generate"
        )
    path = store / MANIFEST_NAME
    if not path.exists() and not path.is_symlink():
        raise IncompleteStoreError(
            "the store is incomplete: it has no manifest",
            where=path,
            fix="run the ingest again; it was stopped before its end",
        )
    return read_plain_file(path)


def read_plain_file(path: Path) -> bytes:
    """The bytes of a manifest, which must be a file and of a size that one may have."""
    if path.is_symlink():
        raise CorruptStoreError("the manifest is a symbolic link", where=path, expected="a plain file")
    if not path.is_file():
        raise IncompleteStoreError("a manifest of the store is missing", where=path, fix="build the store again")
    with storage_errors(path):
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise CorruptStoreError("the manifest is too large to be one", where=path)
        return path.read_bytes()


def read_files(values: Mapping[str, Any], manifest: AnyPath) -> dict[str, FileRecord]:
    """The files that a manifest names, all of them below its directory."""
    return {
        safe_name(name, manifest, MANIFEST_NAME): read_section(FileRecord, record) for name, record in values.items()
    }


def read_parts(body: Mapping[str, Any], path: AnyPath) -> dict[str, Any]:
    """What the manifest of a store and that of a generation have in common besides their edges, by field."""
    return {
        "features": None if body["features"] is None else read_section(FeatureSection, body["features"]),
        "columns": {name: typed(str, kind) for name, kind in body["columns"].items()},
        "num_classes": None if body["num_classes"] is None else typed(int, body["num_classes"]),
        "provenance": typed(dict, body["provenance"]),
        "files": read_files(body["files"], path),
        "written_by": typed(str, body["written_by"]),
        "keys": read_section(KeySection, body["keys"]) if "keys" in body else None,
        "class_names": [typed(str, name) for name in body["class_names"]] if "class_names" in body else None,
    }


def encode_manifest(manifest: Manifest) -> str:
    """The text of a manifest, as it is in a store."""
    body = without_none(manifest, "keys", "class_names", "source_order")
    version = FORMAT_VERSION if manifest.source_order is None else ORDERED_VERSION
    return encode_signed({"format": FORMAT, "format_version": version, **body})


def _check_sense(manifest: Manifest) -> None:
    """Refuse numbers that cannot be of one graph: readers cut blocks and take memory by them."""
    edges, features = manifest.edges, manifest.features
    starts = edges.block_starts
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != manifest.num_nodes:
        raise ValueError("the blocks do not cover the nodes")
    if any(first >= last for first, last in pairwise(starts)) or len(edges.block_edges) != len(starts) - 1:
        raise ValueError("the blocks are not in order")
    if min(edges.block_edges) < 0 or sum(edges.block_edges) != edges.num_edges:
        raise ValueError(f"the blocks do not add up to {edges.num_edges} edges")
    if edges.id_dtype not in ("uint32", "uint64"):
        raise ValueError(f"ids are {edges.id_dtype!r:.100}")
    if manifest.columns and NODES_NAME not in manifest.files:
        raise ValueError(f"there are node columns but no {NODES_NAME}")
    if manifest.source_order not in (None, DEGREE_GROUPS):
        raise ValueError(f"sources are ordered by {manifest.source_order!r:.100}")
    if (ORDER_NAME in manifest.files) != (manifest.source_order is not None):
        raise ValueError(f"an order of sources and {ORDER_NAME} come together")
    check_names(manifest.keys, manifest.class_names, manifest.num_classes, manifest.files)
    if features is not None:
        check_features(features, manifest.num_nodes, manifest.files)


def check_features(features: FeatureSection, num_rows: int, files: Mapping[str, FileRecord]) -> None:
    """Refuse what no feature matrix of so many rows has; ``files`` are those of the store, or of a generation."""
    if features.kind not in ("dense", "sparse") or features.dtype not in ("float32", "float16"):
        raise ValueError(f"features are {features.kind!r:.100} {features.dtype!r:.100}")
    if min(features.num_features, features.rows_per_chunk, features.rows_per_block) < 1:
        raise ValueError("features, rows of a chunk and rows of a block must be at least 1")
    if features.rows_per_block % features.rows_per_chunk or num_rows * features.num_features > MAX_VALUES:
        raise ValueError("no feature matrix is cut like this")
    total_bytes = sum(record.size_bytes for record in files.values())
    if features.rows_per_block // features.rows_per_chunk > (total_bytes if features.kind == "dense" else 1):
        raise ValueError("there are more chunks than bytes")
    prefix, others = (f"{DENSE_DIRECTORY}/", 1) if features.kind == "dense" else (f"{SPARSE_DIRECTORY}/", 0)
    num_files = sum(name.startswith(prefix) for name in files)
    if num_files != others - (-num_rows // features.rows_per_block):
        raise ValueError(f"{num_files} files of features are not one a block")


def check_names(
    keys: KeySection | None, names: list[str] | None, num_classes: int | None, files: Mapping[str, FileRecord]
) -> None:
    """Refuse keys without files, or files without keys, and names that are not one for each class."""
    if keys is not None and keys.type not in ("string", "int64"):
        raise ValueError(f"keys are {keys.type!r:.100}")
    for name in (KEYS_NAME, KEY_INDEX_NAME):
        if (name in files) != (keys is not None):
            raise ValueError(f"keys and the file {name} come together")
    if names is not None and (len(names) != num_classes or len(set(names)) != len(names)):
        raise ValueError(f"{len(names)} names are not one for each of {num_classes} classes")


def block_name(directory: str, index: int) -> str:
    """Where block ``index`` lies below the store, or below its generation."""
    return f"{directory}/{index:05d}.arrow"


def probe_windows(size_bytes: int) -> list[tuple[int, int]]:
    """Offset and length of the windows that ``probe`` covers."""
    if size_bytes <= PROBE_WINDOWS * PROBE_WINDOW_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - PROBE_WINDOW_BYTES
    return [(last * i // (PROBE_WINDOWS - 1), PROBE_WINDOW_BYTES) for i in range(PROBE_WINDOWS)]


def probe_file(path: Path, size_bytes: int) -> int:
    """crc32c over the probe windows of a file."""
    crc = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for offset, length in probe_windows(size_bytes):
            crc = crc32c_of(os.pread(descriptor, length, offset), crc) if length else crc
    finally:
        os.close(descriptor)
    return crc


def record_files(store: Path, written: Mapping[str, WrittenFile]) -> dict[str, FileRecord]:
    """Complete what the writers say of their files with the probes, in name order."""
    return {
        name: FileRecord(file.size_bytes, file.crc32c, probe_file(store / name, file.size_bytes))
        for name, file in sorted(written.items())
    }
