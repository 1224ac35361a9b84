"""A store is either complete and as it was written, or refused: no damaged file is ever read in silence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from ecgl_scale import GraphStore
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError, StoreError, StoreVersionError
from ecgl_scale.run.durable import crc32c_of
from ecgl_scale.run.events import ignore_events
from ecgl_scale.store import graph
from ecgl_scale.store.features import dense_write
from ecgl_scale.store.features import sparse as sparse_store
from ecgl_scale.store.format import Manifest, probe_file
from ecgl_scale.store.verify import verify_store
from tests.faults.running import run_cli

pytestmark = pytest.mark.faults

RANGE_ROWS = 1 << 16
NUM_NODES = 2 * RANGE_ROWS + 500
"""Three blocks of edges, of which the first two are equally large."""
TINY_NODES = 700
FLIPS_PER_STORE = 130
KINDS = ("dense", "sparse")


@dataclass(frozen=True)
class Stores:
    """A store, an older build of the same shape but other values, and the store's files."""

    current: Path
    older: Path
    names: list[str]


def _build(path: Path, kind: str, seed: int, *, num_nodes: int = NUM_NODES) -> Path:
    rng = np.random.default_rng(seed)
    # One edge into every node: blocks of equal size, which only their bytes tell apart.
    edge_index = np.stack([rng.permutation(num_nodes), np.arange(num_nodes)])
    x: Any
    if kind == "dense":
        x = rng.normal(size=(num_nodes, 2)).astype(np.float32)
    else:
        columns = rng.integers(0, 50, num_nodes)
        values = rng.random(num_nodes).astype(np.float32) + 1
        x = sparse.csr_matrix((values, columns, np.arange(num_nodes + 1)), shape=(num_nodes, 50))
    y = rng.permutation(np.arange(num_nodes) % 5)
    GraphStore.from_edge_index(edge_index, x, y, path, columns={"year": rng.integers(1990, 2020, num_nodes)})
    return path


@pytest.fixture(scope="module", params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_write, "CHUNK_BYTES", 64 << 10)
        patch.setattr(dense_write, "BLOCK_BYTES", 256 << 10)
        patch.setattr(sparse_store, "BLOCK_BYTES", 1 << 20)
        current, older = (
            _build(folder / "graph.ecgl", request.param, 1),
            _build(folder / "older.ecgl", request.param, 2),
        )
    names = sorted(str(path.relative_to(current)) for path in current.rglob("*") if path.is_file())
    assert len(names) >= 11
    assert len([name for name in names if "features" in name]) >= 3
    return Stores(current, older, names)


@contextmanager
def _flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(descriptor, 1, position)[0]
        os.pwrite(descriptor, bytes([byte ^ (1 << bit)]), position)
        yield
        os.pwrite(descriptor, bytes([byte]), position)
    finally:
        os.close(descriptor)


def _read_everything(path: Path) -> None:
    store = GraphStore.open(path)
    for block in store.edges.blocks():
        store.edges.read(block)
        store.tiles.read(block)
    assert store.features is not None
    for block in store.features.blocks():
        store.features.read(block)
    store.column("year")


def _verify(path: Path) -> None:
    verify_store(path, on_event=ignore_events)


def _is_refused(action: Callable[[Path], object], path: Path, name: str) -> bool:
    """Whether it raises one of our errors, and one that names the file."""
    try:
        action(path)
    except StoreError as error:
        return Path(name).name in str(error)
    return False


def test_the_undamaged_stores_open_and_verify(stores: Stores) -> None:
    for path in (stores.current, stores.older):
        _read_everything(path)
        _verify(path)


def test_no_flipped_bit_is_silent(stores: Stores) -> None:
    rng = np.random.default_rng(3)
    silent = []
    for flip in range(FLIPS_PER_STORE):
        name = stores.names[flip % len(stores.names)]
        path = stores.current / name
        position, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        with _flipped(path, position, bit), pytest.MonkeyPatch.context() as patch:
            caught = {"open": _is_refused(GraphStore.open, stores.current, name)}
            caught["verify"] = _is_refused(_verify, stores.current, name)
            patch.setattr(graph, "READ_WHOLE_BELOW_BYTES", 0)
            caught["first read"] = _is_refused(_read_everything, stores.current, name)
        silent += [(name, position, bit, by) for by, was_caught in caught.items() if not was_caught]
    assert silent == []
    _verify(stores.current)


def test_a_flipped_bit_is_found_when_rows_are_gathered(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "READ_WHOLE_BELOW_BYTES", 0)
    name = next(name for name in stores.names if name.endswith(("c.1.0", "features/000001.arrow")))
    path = stores.current / name
    # Between two of the sixteen probed windows, so that open itself cannot see it.
    with _flipped(path, path.stat().st_size // 32, 6):
        store = GraphStore.open(stores.current)
        assert store.features is not None
        with pytest.raises(CorruptStoreError, match=Path(name).name):
            store.features.rows(np.arange(NUM_NODES))


def _truncate(path: Path, stores: Stores) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path, stores: Stores) -> None:
    os.truncate(path, 0)


def _delete(path: Path, stores: Stores) -> None:
    path.unlink()


def _append(path: Path, stores: Stores) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def _swap(path: Path, stores: Stores) -> None:
    # With the next file of the same folder, which may have the same size, else with another folder's.
    beside = [other for other in sorted(path.parent.iterdir()) if other.is_file() and other != path]
    other = beside[0] if beside else path.parent / "nodes.arrow"
    path.rename(path.with_name("aside"))
    other.rename(path)
    path.with_name("aside").rename(other)


def _make_stale(path: Path, stores: Stores) -> None:
    shutil.copyfile(stores.older / path.relative_to(stores.current.parent / "copy.ecgl"), path)


def _link(path: Path, stores: Stores) -> None:
    path.unlink()
    path.symlink_to(stores.current / path.relative_to(stores.current.parent / "copy.ecgl"))


def _make_directory(path: Path, stores: Stores) -> None:
    path.unlink()
    path.mkdir()


def _make_fifo(path: Path, stores: Stores) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.fixture
def copy(stores: Stores) -> Iterator[Path]:
    path = stores.current.parent / "copy.ecgl"
    shutil.copytree(stores.current, path)
    yield path
    shutil.rmtree(path)


DAMAGES = (_truncate, _empty, _delete, _append, _swap, _make_stale, _link, _make_directory, _make_fifo)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_file_is_refused_at_open_by_its_name(
    stores: Stores, copy: Path, damage: Callable[[Path, Stores], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sizes, kinds and probes alone must find these: a large store is not read whole at open.
    monkeypatch.setattr(graph, "READ_WHOLE_BELOW_BYTES", 0)
    silent = []
    for name in stores.names:
        path = copy / name
        if damage is _make_stale and path.read_bytes() == (stores.older / name).read_bytes():
            continue  # zarr.json says the same in both
        damage(path, stores)
        accepted_names = stores.names if damage in (_swap, _make_stale) else [name]
        silent += [
            (name, action)
            for action in (GraphStore.open, _verify)
            if not any(_is_refused(action, copy, accepted) for accepted in accepted_names)
        ]
        shutil.rmtree(copy)
        shutil.copytree(stores.current, copy)
    assert silent == []


def test_two_equally_large_files_are_told_apart(stores: Stores, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "READ_WHOLE_BELOW_BYTES", 0)
    for folder in ("edges", "tiles"):
        first, second = copy / folder / "00000.arrow", copy / folder / "00001.arrow"
        assert first.stat().st_size == second.stat().st_size
        _swap(first, stores)
        with pytest.raises(CorruptStoreError, match=f"{folder}/0000"):
            GraphStore.open(copy)
        _swap(first, stores)
        GraphStore.open(copy)


def test_a_linked_directory_is_refused_by_its_name(stores: Stores, copy: Path) -> None:
    for folder in sorted({Path(name).parts[0] for name in stores.names if "/" in name}):
        shutil.rmtree(copy / folder)
        (copy / folder).symlink_to(stores.current / folder)
        with pytest.raises(CorruptStoreError, match=f"link(?s:.*){folder}"):
            GraphStore.open(copy)
        (copy / folder).unlink()
        shutil.copytree(stores.current / folder, copy / folder)


def test_a_linked_store_is_refused(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "link.ecgl").symlink_to(stores.current)
    with pytest.raises(StoreError, match=r"link\.ecgl"):
        GraphStore.open(tmp_path / "link.ecgl")


@pytest.mark.parametrize("name", ["extra.bin", "edges/00009.arrow", "edges/.hidden", "more"])
def test_something_the_manifest_does_not_name_is_refused(stores: Stores, copy: Path, name: str) -> None:
    if name == "more":
        (copy / name).mkdir()
    else:
        (copy / name).write_bytes(b"left over")
    with pytest.raises(CorruptStoreError, match=Path(name).name):
        GraphStore.open(copy)
    with pytest.raises(CorruptStoreError, match=Path(name).name):
        _verify(copy)


def test_the_command_names_the_damaged_file_and_exits_with_3(stores: Stores, copy: Path) -> None:
    _truncate(copy / "edges" / "00001.arrow", stores)
    for command in ("info", "verify"):
        ran = run_cli(command, copy)
        assert (ran.code, ran.stdout) == (3, "")
        assert "edges/00001.arrow" in ran.stderr


def test_a_store_without_a_manifest_is_incomplete(stores: Stores, copy: Path, tmp_path: Path) -> None:
    (copy / "manifest.json").unlink()
    for path in (copy, tmp_path, tmp_path / "nothing", stores.current / "nodes.arrow"):
        with pytest.raises(IncompleteStoreError, match=path.name):
            GraphStore.open(path)
        assert run_cli("info", path).code == 3


@pytest.fixture(scope="module", params=KINDS)
def tiny_built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("tiny") / "tiny.ecgl", request.param, 4, num_nodes=TINY_NODES)


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
    for action in (GraphStore.open, _verify):
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
        for action in (GraphStore.open, _verify):
            try:
                found: object = action(tiny)
            except Exception as error:
                found = error
            if not isinstance(found, StoreError) or str(tiny) not in str(found):
                accepted.append((what, action, repr(found)))
    assert accepted == []


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5, [1]], ids=str)
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
        _verify(copied)


def test_a_manifest_that_was_only_reformatted_is_refused(tiny: Path) -> None:
    path = tiny / "manifest.json"
    text = path.read_text()
    for changed in (text.rstrip(), text + "\n", text.replace("\n", "\r\n"), json.dumps(json.loads(text))):
        path.write_bytes(changed.encode())
        with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
            GraphStore.open(tiny)
