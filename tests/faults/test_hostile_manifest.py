"""A manifest that is damaged, of another version or made to harm is refused, and no file outside is ever opened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.errors import CorruptStoreError, StoreError, StoreVersionError
from ecgl_scale.store.format import Manifest, probe_file
from tests.faults.stores import KINDS, build, verify

pytestmark = pytest.mark.faults

TINY_NODES = 700


@pytest.fixture(scope="module", params=KINDS)
def tiny_built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tiny") / "tiny.ecgl", request.param, 4, num_nodes=TINY_NODES)


@pytest.fixture
def tiny(tiny_built: Path) -> Iterator[Path]:
    """A store whose manifest a test may replace."""
    manifest = (tiny_built / "manifest.json").read_bytes()
    yield tiny_built
    (tiny_built / "manifest.json").write_bytes(manifest)


def _sign(body: dict[str, Any]) -> str:
    """A manifest as we write it, whatever it says: what somebody with our sources could make."""
    unsigned = {name: value for name, value in body.items() if name != "checksum"}
    checksum = crc32c_of(json.dumps(unsigned, sort_keys=True).encode())
    return json.dumps({**unsigned, "checksum": checksum}, indent=1) + "\n"


def _with(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The same with one value replaced, or removed where it is ``...``."""
    changed: dict[str, Any] = json.loads(json.dumps(body))
    *outer, last = path.split(".")
    inside = changed
    for key in outer:
        inside = inside[key]
    if value is ...:
        del inside[last]
    else:
        inside[last] = value
    return changed


RECORD = {"size_bytes": 5, "crc32c": 1, "probe": 1}
OUTSIDE_NAMES = [
    "/etc/passwd",
    "../secret.txt",
    "edges/../../secret.txt",
    "./manifest.json",
    "manifest.json",
    "edges//00000.arrow",
    "edges/",
    "",
    ".",
    "..",
    "a\0b",
    "\ud800",
    "x" * 5000,
    "c:\\boot.ini",
]


@pytest.mark.parametrize("name", OUTSIDE_NAMES, ids=lambda name: ascii(name)[:30])
def test_a_manifest_that_names_a_file_outside_is_refused_and_nothing_outside_is_opened(
    tiny: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tiny.parent / "secret.txt").write_text("12345")
    body = json.loads((tiny / "manifest.json").read_text())
    body["files"][name] = RECORD
    (tiny / "manifest.json").write_text(_sign(body))
    opened: list[str] = []
    real_open = os.open

    def recording_open(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(str(path))
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", recording_open)
    for action in (GraphStore.open, verify):
        with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
            action(tiny)
    assert [path for path in opened if not path.startswith(str(tiny))] == []


WRONG_STARTS: list[Any] = [[], [0], [0, 5, TINY_NODES], ["0"], [0, 5, 5, TINY_NODES], {}, [0, 10**30]]
WRONG_VALUES: list[tuple[str, Any]] = [
    *((name, ...) for name in ("num_nodes", "edges", "features", "columns", "num_classes", "provenance", "files")),
    *((name, "text") for name in ("num_nodes", "edges", "features", "columns", "num_classes", "provenance", "files")),
    *((name, 7.5) for name in ("num_nodes", "edges", "columns", "num_classes", "files", "written_by")),
    *((name, [1]) for name in ("num_nodes", "edges", "features", "columns", "provenance", "files")),
    *(("num_nodes", value) for value in (True, None, 0, -1, 10**30, float("inf"), float("nan"), TINY_NODES + 1)),
    *(("edges.num_edges", value) for value in (-1, 10**30, 1.5, None, True)),
    *(("edges.block_starts", value) for value in WRONG_STARTS),
    *(("edges.block_edges", value) for value in ([], [1], [10**30, -(10**30), 1], [None] * 3, "abc")),
    ("edges.id_dtype", "object"),
    ("edges.id_dtype", "float32"),
    ("edges.extra", 1),
    *(
        (f"features.{name}", value)
        for name in ("rows_per_block", "rows_per_chunk")
        for value in (0, -1, 1, 10**30, "8")
    ),
    *(("features.num_features", value) for value in (0, -1, 10**30, None)),
    ("features.kind", "pickle"),
    ("features.kind", ["dense"]),
    ("features.dtype", "object"),
    ("features.dtype", "float64"),
    ("columns", {"year": 5}),
    ("columns", {"year": ["int64"]}),
]


@pytest.mark.timeout(60)
def test_a_manifest_with_wrong_types_missing_keys_or_senseless_numbers_is_refused(tiny: Path) -> None:
    body = json.loads((tiny / "manifest.json").read_text())
    records = [
        (f"files/{name}", field, value)
        for name in list(body["files"])[:1]
        for field in RECORD
        for value in (..., "1", -1, 10**40, 1.0, None)
    ]
    hostile = [(f"{path} = {value}", _with(body, path, value)) for path, value in WRONG_VALUES]
    for where, field, value in records:
        changed = json.loads(json.dumps(body))
        record = changed["files"][where.removeprefix("files/")]
        if value is ...:
            del record[field]
        else:
            record[field] = value
        hostile.append((f"{where} {field} = {value}", changed))
    for name in body["files"]:
        changed = json.loads(json.dumps(body))
        del changed["files"][name]
        hostile.append((f"without {name}", changed))
    accepted = []
    for what, changed in hostile:
        (tiny / "manifest.json").write_text(_sign(changed))
        for action in (GraphStore.open, verify):
            try:
                found: object = action(tiny)
            except Exception as error:
                found = error
            if not isinstance(found, StoreError) or str(tiny) not in str(found):
                accepted.append((what, action, repr(found)))
    assert accepted == []


@pytest.mark.parametrize("version", [0, 4, "1", None, 1.5, [1]], ids=str)
def test_another_format_version_is_refused_with_what_to_do(tiny: Path, version: Any) -> None:
    body = json.loads((tiny / "manifest.json").read_text())
    (tiny / "manifest.json").write_text(_sign({**body, "format_version": version}))
    with pytest.raises(StoreVersionError, match="build it again"):
        GraphStore.open(tiny)


NOT_MANIFESTS = {
    "empty": b"",
    "text": b"hello",
    "binary": bytes(range(256)),
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "another format": b'{"format": "zarr"}',
    "deep list": b"[" * 100_000,
    "deep object": b'{"format": "ecgl-store", "format_version": 1, "a": ' + b'{"a":' * 100_000,
    "huge number": b'{"format": "ecgl-store", "format_version": 1, "num_nodes": ' + b"9" * 10_000 + b"}",
    "not finite": b'{"format": "ecgl-store", "format_version": 1, "num_nodes": 1e999}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("what", NOT_MANIFESTS)
def test_what_is_not_a_manifest_is_refused(tiny: Path, what: str) -> None:
    (tiny / "manifest.json").write_bytes(NOT_MANIFESTS[what])
    with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
        GraphStore.open(tiny)


def test_nesting_of_any_depth_is_refused_and_not_a_crash(tiny: Path) -> None:
    # Near the recursion limit parsing may succeed where writing fails: every depth must end in our error.
    for depth in (10, *range(100, 1000, 50)):
        nested = b"[" * depth + b"]" * depth
        (tiny / "manifest.json").write_bytes(b'{"format": "ecgl-store", "format_version": 1, "a": ' + nested + b"}")
        with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
            Manifest.read(tiny)


def _resign(store: Path, name: str) -> None:
    """Let the manifest vouch for a file somebody made, as somebody with our sources could."""
    body = json.loads((store / "manifest.json").read_text())
    content = (store / name).read_bytes()
    probe = probe_file(store / name, len(content))
    body["files"][name] = {"size_bytes": len(content), "crc32c": crc32c_of(content), "probe": probe}
    (store / "manifest.json").write_text(_sign(body))


def _with_values(path: Path, number: int) -> None:
    """The same Arrow file with other numbers in the values of its first column."""
    batch = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).get_batch(0)
    column = batch.column(0)
    values = pa.array(np.full(len(column.values), number, np.uint32))
    hostile = batch.set_column(0, batch.schema.field(0), pa.LargeListArray.from_arrays(column.offsets, values))
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(hostile)


def test_ids_outside_the_graph_are_refused_before_any_kernel_uses_them(tiny: Path, tmp_path: Path) -> None:
    copied = tmp_path / "hostile.ecgl"
    shutil.copytree(tiny, copied)
    names = [name for name in ("edges/00000.arrow", "features/000000.arrow") if (copied / name).exists()]
    for name in names:
        _with_values(copied / name, 2**32 - 1)
        _resign(copied, name)
    store = GraphStore.open(copied)
    for _ in range(2):  # a refused block stays refused
        with pytest.raises(CorruptStoreError, match=r"edges/00000\.arrow"):
            store.edges.out_degrees()
        if len(names) == 2:
            assert store.features is not None
            with pytest.raises(CorruptStoreError, match=r"features/000000\.arrow"):
                store.features.rows_dense(np.arange(TINY_NODES))
    with pytest.raises(CorruptStoreError, match=r"edges/00000\.arrow"):
        verify(copied)


def test_a_manifest_that_was_only_reformatted_is_refused(tiny: Path) -> None:
    path = tiny / "manifest.json"
    text = path.read_text()
    for changed in (text.rstrip(), text + "\n", text.replace("\n", "\r\n"), json.dumps(json.loads(text))):
        path.write_bytes(changed.encode())
        with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
            GraphStore.open(tiny)
