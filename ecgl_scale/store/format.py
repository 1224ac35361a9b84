"""The manifest: what a store holds, file by file. It is written last, so a store without one is not a store.

``manifest.json`` carries the graph's counts, the layout of every part, and for each file its size, the crc32c of all
its bytes and the crc32c of a few pages spread over it (``probe``), which tells swapped or stale files apart at open
without reading everything. The manifest is covered by a checksum of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ecgl_scale._version import __version__
from ecgl_scale.base.durable import WrittenFile, crc32c_of, storage_errors, write_atomically
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError, StoreVersionError
from ecgl_scale.store.source import Json
from ecgl_scale.units import MIB

FORMAT = "ecgl-store"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
EDGES_DIRECTORY = "edges"
TILES_DIRECTORY = "tiles"
DENSE_DIRECTORY = "features.zarr"
SPARSE_DIRECTORY = "features"
NODES_NAME = "nodes.arrow"
KEYS_NAME, KEY_INDEX_NAME = "keys.arrow", "key-index.arrow"

PROBE_WINDOWS = 16
PROBE_WINDOW_BYTES = 4096
MAX_MANIFEST_BYTES = 256 * MIB
MAX_VALUES = 1 << 60
"""More features than any disk holds; a manifest that claims them would only make our numbers overflow."""

OPTIONAL = ("keys", "class_names")
"""Sections that only stores with names have: the bytes of others are as they always were."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")

Section = TypeVar("Section")


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

    @property
    def total_bytes(self) -> int:
        """Size of all files named here."""
        return sum(record.size_bytes for record in self.files.values())

    def write(self, store: Path) -> None:
        """Write the manifest, atomically: from here on the store is complete."""
        write_atomically(store / MANIFEST_NAME, encode_manifest(self))

    @classmethod
    def read(cls, store: Path) -> Manifest:
        """Read and check the manifest of ``store``; every fault is named."""
        path = store / MANIFEST_NAME
        if not store.is_dir() or store.is_symlink():
            raise IncompleteStoreError(
                "there is no store here", where=store, expected="a directory made by ecgl ingest or generate"
            )
        if path.is_symlink():
            raise CorruptStoreError("the manifest is a symbolic link", where=path, expected="a plain file")
        if not path.is_file():
            raise IncompleteStoreError(
                "the store is incomplete: it has no manifest",
                where=path,
                fix="run the ingest again; it was stopped before its end",
            )
        with storage_errors(path):
            if path.stat().st_size > MAX_MANIFEST_BYTES:
                raise CorruptStoreError("the manifest is too large to be one", where=path)
            raw = path.read_bytes()
        return cls.parse(raw, path)

    @classmethod
    def parse(cls, raw: bytes, path: AnyPath) -> Manifest:
        """Check the bytes of a manifest that was read from ``path``."""
        try:
            body = json.loads(raw)
            as_written = isinstance(body, dict) and _encode(body).encode() == raw
        except (ValueError, RecursionError) as error:
            raise CorruptStoreError(f"the manifest is not JSON: {error}", where=path) from error
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise CorruptStoreError(
                "this is not the manifest of a graph store", where=path, expected=f'"format": "{FORMAT}"'
            )
        if body.get("format_version") != FORMAT_VERSION:
            raise StoreVersionError(
                f"the store has format version {body.get('format_version')}",
                where=path,
                expected=f"version {FORMAT_VERSION}",
                fix="build it again from its source with this version of ecgl_scale",
            )
        if not as_written:
            raise CorruptStoreError(
                "the manifest does not match its own checksum", where=path, fix="build the store again"
            )
        return cls._from_json(body, path)

    @classmethod
    def _from_json(cls, body: dict[str, Any], path: AnyPath) -> Manifest:
        # The checksum matched, so this guards against a manifest made by hand, not against accidents.
        try:
            manifest = cls(
                num_nodes=_typed(int, body["num_nodes"]),
                edges=_section(EdgeSection, body["edges"]),
                features=None if body["features"] is None else _section(FeatureSection, body["features"]),
                columns={name: _typed(str, kind) for name, kind in body["columns"].items()},
                num_classes=None if body["num_classes"] is None else _typed(int, body["num_classes"]),
                provenance=_typed(dict, body["provenance"]),
                files={_safe_name(name, path): _section(FileRecord, record) for name, record in body["files"].items()},
                written_by=_typed(str, body["written_by"]),
                keys=_section(KeySection, body["keys"]) if "keys" in body else None,
                class_names=[_typed(str, name) for name in body["class_names"]] if "class_names" in body else None,
            )
            _check_sense(manifest)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, CorruptStoreError):
                raise
            raise CorruptStoreError(
                f"the manifest lacks something or holds a wrong value: {error}", where=path
            ) from error
        return manifest


def encode_manifest(manifest: Manifest) -> str:
    """The text of a manifest, as it is in a store."""
    body = {name: value for name, value in asdict(manifest).items() if name not in OPTIONAL or value is not None}
    return _encode({"format": FORMAT, "format_version": FORMAT_VERSION, **body})


def _encode(body: Mapping[str, Any]) -> str:
    """The one text of a manifest, its checksum last: a file that differs from it in any byte was not written by us."""
    unsigned = {name: value for name, value in body.items() if name != "checksum"}
    checksum = crc32c_of(json.dumps(unsigned, sort_keys=True).encode())
    return json.dumps({**unsigned, "checksum": checksum}, indent=1) + "\n"


def _typed(kind: type[Section], value: Any) -> Section:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.100} is not {kind.__name__}")
    return value


def _section(kind: type[Section], values: Mapping[str, Any]) -> Section:
    hints = get_type_hints(kind)
    names = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    if set(values) != names:
        raise ValueError(f"{kind.__name__} has keys {sorted(values)}, expected {sorted(names)}")
    for name in names:
        if hints[name] == list[int]:
            for value in _typed(list, values[name]):
                _typed(int, value)
        else:
            _typed(hints[name], values[name])
    return kind(**values)


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
    _check_names(manifest)
    if features is None:
        return
    if features.kind not in ("dense", "sparse") or features.dtype not in ("float32", "float16"):
        raise ValueError(f"features are {features.kind!r:.100} {features.dtype!r:.100}")
    if min(features.num_features, features.rows_per_chunk, features.rows_per_block) < 1:
        raise ValueError("features, rows of a chunk and rows of a block must be at least 1")
    if features.rows_per_block % features.rows_per_chunk or manifest.num_nodes * features.num_features > MAX_VALUES:
        raise ValueError("no feature matrix is cut like this")
    if features.rows_per_block // features.rows_per_chunk > (manifest.total_bytes if features.kind == "dense" else 1):
        raise ValueError("there are more chunks than bytes")
    prefix, others = (f"{DENSE_DIRECTORY}/", 1) if features.kind == "dense" else (f"{SPARSE_DIRECTORY}/", 0)
    num_files = sum(name.startswith(prefix) for name in manifest.files)
    if num_files != others - (-manifest.num_nodes // features.rows_per_block):
        raise ValueError(f"{num_files} files of features are not one a block")


def _check_names(manifest: Manifest) -> None:
    keys, names = manifest.keys, manifest.class_names
    if keys is not None and keys.type not in ("string", "int64"):
        raise ValueError(f"keys are {keys.type!r:.100}")
    for name in (KEYS_NAME, KEY_INDEX_NAME):
        if (name in manifest.files) != (keys is not None):
            raise ValueError(f"keys and the file {name} come together")
    if names is not None and (len(names) != manifest.num_classes or len(set(names)) != len(names)):
        raise ValueError(f"{len(names)} names are not one for each of {manifest.num_classes} classes")


def _safe_name(name: str, manifest: AnyPath) -> str:
    if not _FILE_NAME.fullmatch(name) or len(name) > 255 or name == MANIFEST_NAME:
        raise CorruptStoreError(f"the manifest names a file outside the store: {name!r:.300}", where=manifest)
    return name


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
