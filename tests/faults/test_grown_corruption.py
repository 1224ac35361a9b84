"""A store that has grown is as it was written, in every file of every generation, or it is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError, StoreError
from ecgl_scale.store import graph
from ecgl_scale.store.format import FileRecord
from ecgl_scale.store.signed_json import encode_signed
from tests.faults.stores import KINDS, verify
from tests.grown_stores import make_both

pytestmark = pytest.mark.faults

NODES = (65_000, 65_000, 65_900)
"""Two generations: of only edges; and of nodes of which some are in a block of their own."""


@dataclass(frozen=True)
class Stores:
    """A grown store, another of the same shape with other values, and the files of the store."""

    current: Path
    other: Path
    names: list[str]


@pytest.fixture(scope="module", params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    paths = [
        make_both(tmp_path_factory.mktemp("grown"), NODES, num_edges=500, kind=request.param, seed=seed).grown.path
        for seed in (1, 2)
    ]
    current, other = (Path(str(path)) for path in paths)
    names = sorted(str(path.relative_to(current)) for path in current.rglob("*") if path.is_file())
    names = [name for name in names if not Path(name).name.startswith(".")]
    assert {"manifest.json", "generations/0000.json", "generations/0001/older/00000.arrow"} <= set(names)
    assert {"generations/0002/manifest.json", "generations/0002/edges/00000.arrow"} <= set(names)
    return Stores(current, other, names)


@pytest.fixture
def copy(stores: Stores, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores.current, tmp_path / "copy.ecgl"))


def _read_everything(path: Path) -> None:
    store = GraphStore.open(path)
    for block in store.edges.blocks():
        store.edges.read(block)
        store.tiles.read(block)
    assert store.features is not None
    for block in store.features.blocks():
        store.features.read_dense(block)
    store.column("year")


def _error_of(action: Callable[[Path], object], path: Path) -> StoreError | None:
    try:
        action(path)
    except StoreError as error:
        return error
    return None


def test_the_undamaged_stores_open_and_verify(stores: Stores) -> None:
    for path in (stores.current, stores.other):
        _read_everything(path)
        verify(path)


def test_no_flipped_bit_of_any_file_is_silent(stores: Stores) -> None:
    rng = np.random.default_rng(3)
    silent = []
    for name in stores.names * 2:
        path = stores.current / name
        whole = path.read_bytes()
        position, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.pwrite(descriptor, bytes([whole[position] ^ (1 << bit)]), position)
            with pytest.MonkeyPatch.context() as patch:
                caught = {"open": _error_of(GraphStore.open, stores.current)}
                caught["verify"] = _error_of(verify, stores.current)
                patch.setattr(graph, "READ_WHOLE_BELOW_BYTES", 0)
                caught["first read"] = _error_of(_read_everything, stores.current)
        finally:
            os.pwrite(descriptor, whole[position : position + 1], position)
            os.close(descriptor)
        silent += [(name, by) for by, error in caught.items() if error is None or Path(name).name not in str(error)]
    assert silent == []
    verify(stores.current)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "removed", "linked", "another store's"])
def test_no_damaged_file_is_silent(stores: Stores, copy: Path, damage: str) -> None:
    silent = []
    for name in stores.names:
        path, other = copy / name, stores.other / name
        whole = path.read_bytes()
        if damage in ("truncated", "emptied"):
            path.write_bytes(whole[:-1] if damage == "truncated" else b"")
        elif damage == "another store's":
            path.write_bytes(other.read_bytes())
            if other.read_bytes() == whole:  # such as the zarr.json of an equal shape
                continue
        else:
            path.unlink()
        if damage == "linked":
            path.symlink_to(stores.current / name)
        silent += [(name, action.__name__) for action in (GraphStore.open, verify) if _error_of(action, copy) is None]
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    assert silent == []
    verify(copy)


def test_swapped_generations_and_strangers_are_refused(copy: Path) -> None:
    first, second = copy / "generations/0001", copy / "generations/0002"
    for name in ("extra.arrow", "older/00009.arrow", "old"):
        (first / name).write_bytes(b"x")
        with pytest.raises(CorruptStoreError, match="does not name"):
            GraphStore.open(copy)
        (first / name).unlink()
    (copy / "generations/notes.txt").write_bytes(b"x")
    with pytest.raises(CorruptStoreError, match="does not name"):
        GraphStore.open(copy)
    (copy / "generations/notes.txt").unlink()
    verify(copy)
    first.rename(copy / "kept")
    second.rename(first)
    (copy / "kept").rename(second)
    with pytest.raises(CorruptStoreError, match="not the one that the head was written for"):
        GraphStore.open(copy)


def test_a_missing_generation_is_named(copy: Path) -> None:
    shutil.rmtree(copy / "generations/0002")
    with pytest.raises(IncompleteStoreError, match=r"generations/0002/manifest\.json"):
        GraphStore.open(copy)
    verify(copy.with_name(f"{copy.name}#generation=1"))


def _rewrite(copy: Path, number: int, change: Callable[[dict[str, Any]], object], *, in_head: bool = True) -> None:
    """Change the manifest of a generation and make the head vouch for it, as somebody with bad intentions would."""
    path = copy / f"generations/{number:04d}/manifest.json"
    body = json.loads(path.read_text())
    change(body)
    text = encode_signed(body)
    path.write_text(text)
    head = json.loads((copy / "manifest.json").read_text())
    if in_head:
        head["generations"][number] |= {"size_bytes": len(text), "crc32c": crc32c_of(text.encode())}
    (copy / "manifest.json").write_text(encode_signed(head))


def _set(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(body: dict[str, Any]) -> None:
        *folders, name = path.split(".")
        for folder in folders:
            body = body[folder]
        body[name] = value

    return change


HOSTILE = [
    (2, "number", 1),
    (2, "number", 2.0),
    (2, "parent_crc32c", 5),
    (1, "num_new_nodes", -1),
    (2, "num_new_nodes", 10**30),
    (2, "num_new_nodes", 1),
    (2, "edges.block_starts", [65_536]),
    (2, "edges.block_starts", [0, 65_900]),
    (2, "edges.block_starts", [65_537, 65_900]),
    (1, "edges.block_starts", [65_536, 65_900]),
    (2, "edges.id_dtype", "int8"),
    (2, "edges.num_edges", 1),
    (1, "older.blocks", [1]),
    (1, "older.blocks", [-1]),
    (1, "older.blocks", [0, 0]),
    (1, "older.block_edges", [0]),
    (1, "older.block_edges", ["5"]),
    (1, "older.file_blocks", [2]),
    (1, "older.file_blocks", []),
    (2, "columns", {"year": "int64"}),
    (2, "columns", {}),
    (1, "columns", {"year": "int64"}),
    (2, "num_classes", 1),
    (2, "num_classes", None),
    (2, "features", None),
    (2, "features.num_features", 3),
    (2, "features.kind", "pickle"),
    (2, "files", {}),
    (2, "files", []),
    (2, "keys", {"name": "id", "type": "string"}),
    (2, "format_version", 9),
    (2, "format", "ecgl-store"),
]


@pytest.mark.parametrize(("number", "path", "value"), HOSTILE, ids=[f"{path}={value}" for _, path, value in HOSTILE])
def test_a_generation_that_does_not_fit_is_refused(copy: Path, number: int, path: str, value: object) -> None:
    _rewrite(copy, number, _set(path, value))
    for action in (GraphStore.open, verify):
        error = _error_of(action, copy)
        assert error is not None
        assert str(copy) in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.update(generations=[]),
        lambda head: head.update(generations=head["generations"][:1]),
        lambda head: head.update(generations=None),
        lambda head: head.update(more=1),
        lambda head: head["generations"].reverse(),
        lambda head: head["generations"][1].update(manifest="../x/manifest.json"),
        lambda head: head["generations"][2].update(num_nodes=1),
        lambda head: head["generations"][2].update(num_edges=10**9),
        lambda head: head["generations"][1].pop("crc32c"),
        lambda head: head["generations"].append(head["generations"][-1]),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(copy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    head = json.loads((copy / "manifest.json").read_text())
    change(head)
    (copy / "manifest.json").write_text(encode_signed(head))
    for action in (GraphStore.open, verify):
        error = _error_of(action, copy)
        assert error is not None
        assert str(copy) in str(error)


def _replace_pairs(copy: Path, number: int, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    """Write other pairs of the same number, with manifests and head that vouch for them."""
    name = "older/00000.arrow"
    path = copy / f"generations/{number:04d}" / name
    with pa.memory_map(str(path)) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(0)
        dst, src = change(batch.column("dst").to_numpy().copy(), batch.column("src").to_numpy().copy())
    written = pa.record_batch([pa.array(dst), pa.array(src)], schema=batch.schema)
    path.unlink()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, written.schema) as writer:
        writer.write_batch(written)
    raw = path.read_bytes()
    record = FileRecord(len(raw), crc32c_of(raw), crc32c_of(raw))
    assert len(raw) <= 16 * 4096  # so the probe covers all of it
    _rewrite(copy, number, lambda body: body["files"].update({name: record.__dict__}))
    head = json.loads((copy / "manifest.json").read_text())
    for later in range(number + 1, len(head["generations"])):
        parent = head["generations"][later - 1]["crc32c"]
        _rewrite(copy, later, _set("parent_crc32c", parent))
        head = json.loads((copy / "manifest.json").read_text())


def _with(column: Any, place: int, value: int) -> Any:
    column[place] = value
    return column


@pytest.mark.parametrize(
    ("what", "change"),
    {
        "in another order": lambda dst, src: (dst[::-1].copy(), src[::-1].copy()),
        "into rows that are not there": lambda dst, src: (_with(dst, -1, 65_536), src),
        "from a node that is not there": lambda dst, src: (dst, _with(src, -1, 65_000)),
        "one twice": lambda dst, src: (_with(dst, 1, dst[0]), _with(src, 1, src[0])),
        "with the sources of others": lambda dst, src: (dst, np.roll(src, 1)),
    }.items(),
)
def test_pairs_that_are_not_what_they_should_be_are_refused(copy: Path, what: str, change: Any) -> None:
    _replace_pairs(copy, 1, change)
    for action in (_read_everything, verify):
        error = _error_of(action, copy)
        assert error is not None, what
        assert "00000.arrow" in str(error)


def test_an_edge_that_an_older_generation_has_is_found_by_verify(copy: Path) -> None:
    first = GraphStore.open(copy, generation=0)
    known = first.to_edge_index()[:, 0]

    def repeat(dst: Any, src: Any) -> tuple[Any, Any]:
        pairs = sorted({*zip(dst.tolist()[1:], src.tolist()[1:], strict=True), (int(known[1]), int(known[0]))})
        assert len(pairs) == dst.size
        return np.array([d for d, _ in pairs], dst.dtype), np.array([s for _, s in pairs], src.dtype)

    _replace_pairs(copy, 1, repeat)
    with pytest.raises(CorruptStoreError, match="that was there before"):
        verify(copy)
