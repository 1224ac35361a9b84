"""A store is either complete and as it was written, or refused: no damaged file is ever read in silence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.errors import CorruptStoreError, IncompleteStoreError, StoreError
from ecgl_scale.store import graph
from ecgl_scale.store.features import dense_write
from ecgl_scale.store.features import sparse as sparse_store
from tests.faults.running import run_cli
from tests.faults.stores import KINDS, NUM_NODES, build, verify

pytestmark = pytest.mark.faults

FLIPS_PER_STORE = 130


@dataclass(frozen=True)
class Stores:
    """A store, an older build of the same shape but other values, and the store's files."""

    current: Path
    older: Path
    names: list[str]


@pytest.fixture(scope="module", params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_write, "CHUNK_BYTES", 64 << 10)
        patch.setattr(dense_write, "BLOCK_BYTES", 256 << 10)
        patch.setattr(sparse_store, "BLOCK_BYTES", 1 << 20)
        current, older = (
            build(folder / "graph.ecgl", request.param, 1),
            build(folder / "older.ecgl", request.param, 2),
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


def _is_refused(action: Callable[[Path], object], path: Path, name: str) -> bool:
    """Whether it raises one of our errors, and one that names the file."""
    try:
        action(path)
    except StoreError as error:
        return Path(name).name in str(error)
    return False


def test_the_undamaged_stores_open_andverify(stores: Stores) -> None:
    for path in (stores.current, stores.older):
        _read_everything(path)
        verify(path)


def test_no_flipped_bit_is_silent(stores: Stores) -> None:
    rng = np.random.default_rng(3)
    silent = []
    for flip in range(FLIPS_PER_STORE):
        name = stores.names[flip % len(stores.names)]
        path = stores.current / name
        position, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        with _flipped(path, position, bit), pytest.MonkeyPatch.context() as patch:
            caught = {"open": _is_refused(GraphStore.open, stores.current, name)}
            caught["verify"] = _is_refused(verify, stores.current, name)
            patch.setattr(graph, "READ_WHOLE_BELOW_BYTES", 0)
            caught["first read"] = _is_refused(_read_everything, stores.current, name)
        silent += [(name, position, bit, by) for by, was_caught in caught.items() if not was_caught]
    assert silent == []
    verify(stores.current)


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
            for action in (GraphStore.open, verify)
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
        verify(copy)


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
