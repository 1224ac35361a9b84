"""An append that is killed at any step leaves the old store or the new one, and the same command then finishes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.errors import EcglError, StopRequestedError, StorageError, StoreError
from ecgl_scale.store import append, new_generation
from ecgl_scale.store.append import append_store
from ecgl_scale.store.new_generation import NewGeneration
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.store.view import read_view
from tests.faults.running import RENAMES, copy_at_calls, kill_at_rename, leftovers, run_cli, start_child, write_graph
from tests.resources import at

pytestmark = pytest.mark.faults

LOCK = ".graph.ecgl.building.lock"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    store = folder / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", write_graph(folder / "old.npz"), store).code == 0
    return store


@pytest.fixture(scope="module")
def arriving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edges between old and new nodes; rows of the last older block and rows of a block of its own."""
    rng = np.random.default_rng(3)
    num_new = 70_000
    edges = rng.integers(0, 3_000 + num_new, (2, 4_000))
    path = tmp_path_factory.mktemp("new") / "new.npz"
    return write_graph(path, nodes=num_new, edge_index=edges, x=rng.normal(size=(num_new, 8)).astype(np.float32))


@pytest.fixture(scope="module")
def new(old: Path, arriving: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of a store that nobody disturbed."""
    store = tmp_path_factory.mktemp("clean") / "graph.ecgl"
    shutil.copytree(old, store)
    assert run_cli("--quiet", "append", "npz", arriving, store).code == 0
    return everything_in(store)


def everything_in(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def check_state(store: Path, old: Path, new: dict[str, bytes]) -> str:
    """The store is the old or the new one to every reader; says which."""
    verify_store(store, at())
    graph = GraphStore.open(store)
    if graph.num_nodes == 3_000:
        there = everything_in(store)
        assert {name: there[name] for name in everything_in(old)} == everything_in(old)
        return "old"
    assert everything_in(store) == new
    return "new"


def test_killed_at_every_rename_the_store_is_old_or_new_and_the_same_command_finishes(
    old: Path, arriving: Path, new: dict[str, bytes], tmp_path: Path
) -> None:
    store = tmp_path / "graph.ecgl"
    ended: list[str] = []
    for number in range(1, 30):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(old, store)
        child = start_child(kill_at_rename, (number,), "--quiet", "append", "npz", arriving, store)
        child.join(60)
        ended.append(check_state(store, old, new))
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        if ended[-1] == "old":
            ran = run_cli("--quiet", "append", "npz", arriving, store)
            assert ran.code == 0, ran.stderr
            assert check_state(store, old, new) == "new"
            assert leftovers(tmp_path) == []
    # Features, a file of older edges, the manifest, the directory, the first manifest's name and the head.
    assert len(ended) > 5
    assert ended == ["old"] * (len(ended) - 1) + ["new"]


def test_at_every_fsync_rename_and_link_the_store_is_never_half_written(
    old: Path, arriving: Path, new: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    shutil.copytree(old, folder / "graph.ecgl")
    with monkeypatch.context() as patch:
        taken = copy_at_calls(patch, (*RENAMES, "fsync"), folder, tmp_path)
        append_store(open_npz_source(arriving, adds=True), folder / "graph.ecgl", at(threads=1))
    ended = [check_state(copy / "graph.ecgl", old, new) for copy in taken]
    assert len(ended) > 20
    assert ended == sorted(ended, key=["old", "new"].index)
    assert 0 < ended.count("new") < 3
    for copy in (taken[0], taken[len(taken) // 2], taken[ended.index("new") - 1]):
        append_store(open_npz_source(arriving, adds=True), copy / "graph.ecgl", at())
        assert check_state(copy / "graph.ecgl", old, new) == "new"


@pytest.mark.parametrize("error", [StopRequestedError("stop"), OSError(28, "No space left on device")])
@pytest.mark.parametrize("place", [(append, "write_blocks"), (os, "link"), (new_generation, "Head")])
def test_a_stop_or_a_full_disk_leaves_the_store_as_it_was(
    old: Path, arriving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, place: Any
) -> None:
    store = tmp_path / "graph.ecgl"
    shutil.copytree(old, store)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(*place, fail)
    if place == (os, "link") and isinstance(error, OSError):
        append_store(open_npz_source(arriving, adds=True), store, at())  # a copy does where links fail
        assert (store / "generations/0000.json").read_bytes() == (old / "manifest.json").read_bytes()
        return
    with pytest.raises((StopRequestedError, StorageError)):
        append_store(open_npz_source(arriving, adds=True), store, at())
    assert everything_in(store) == everything_in(old)
    assert leftovers(tmp_path) == []


def wait_at_first_fsync(ready: str) -> None:
    """In a child: say that the append is under way, then wait to be killed."""

    def wait(fd: object) -> None:
        Path(ready).touch()
        time.sleep(60)

    os.fsync = wait


def test_a_second_append_is_refused_while_one_is_under_way_and_takes_over_when_that_is_dead(
    old: Path, arriving: Path, new: dict[str, bytes], tmp_path: Path
) -> None:
    store, ready = tmp_path / "graph.ecgl", tmp_path / "ready"
    shutil.copytree(old, store)
    holder = start_child(wait_at_first_fsync, (str(ready),), "--quiet", "append", "npz", arriving, store)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        ran = run_cli("append", "npz", arriving, store)
        assert (ran.code, ran.stdout) == (3, "")
        assert f'"pid": {holder.pid}' in ran.stderr
        refused = run_cli("ingest", "npz", arriving, store, "--overwrite")
        assert refused.code == 3
        assert GraphStore.open(store).num_nodes == 3_000
    finally:
        holder.kill()
        holder.join(60)
    assert run_cli("--quiet", "append", "npz", arriving, store).code == 0
    assert check_state(store, old, new) == "new"
    assert [name for name in leftovers(tmp_path) if name != LOCK] == []


def test_a_head_that_changed_meanwhile_is_refused(
    old: Path, arriving: Path, new: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "graph.ecgl"
    shutil.copytree(old, store)
    changed = (old / "manifest.json").read_bytes().replace(b'"num_classes": 7', b'"num_classes": 8')
    commit = NewGeneration.commit

    def meanwhile(self: NewGeneration, *arguments: Any) -> None:
        (store / "manifest.json").write_bytes(changed)
        commit(self, *arguments)

    monkeypatch.setattr(NewGeneration, "commit", meanwhile)
    with pytest.raises(StoreError, match="the store has changed since"):
        append_store(open_npz_source(arriving, adds=True), store, at())
    assert (store / "manifest.json").read_bytes() == changed


def test_leftovers_of_others_are_not_removed(old: Path, arriving: Path, tmp_path: Path) -> None:
    store = tmp_path / "graph.ecgl"
    shutil.copytree(old, store)
    for name in ("generations/0001/edges", "generations/.0001.staging", "generations/.0007.staging-abc"):
        (store / name).mkdir(parents=True)
    (store / "generations/0000.json").write_text("{}")
    (store / "generations/.0001.head").write_text("{}")
    (store / "generations/notes").write_text("mine")
    append_store(open_npz_source(arriving, adds=True), store, at())
    assert sorted(path.name for path in (store / "generations").iterdir()) == ["0000.json", "0001", "notes"]
    assert read_view(store).generation == 1


def test_what_is_no_store_is_refused_and_nothing_is_made_beside_it(arriving: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(EcglError, match=r"no store|no manifest"):
            append_store(open_npz_source(arriving, adds=True), tmp_path / name, at())
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
