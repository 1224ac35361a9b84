"""A compaction that is killed at any step leaves the old store or the new one; readers keep what they have opened."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base import staging
from ecgl_scale.errors import LockedError, StoreError
from ecgl_scale.store import compact
from ecgl_scale.store.append import append_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from tests.faults.running import leftovers, run_cli, start_child, write_graph
from tests.resources import at
from tests.store.graphs import bytes_of


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two generations."""
    folder = tmp_path_factory.mktemp("grown")
    store = folder / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", write_graph(folder / "old.npz"), store).code == 0
    edges = np.random.default_rng(3).integers(0, 3_500, (2, 4_000))
    arriving = write_graph(folder / "new.npz", nodes=500, edge_index=edges)
    assert run_cli("--quiet", "append", "npz", arriving, store).code == 0
    return store


@pytest.fixture(scope="module")
def compacted(grown: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of a compaction that nobody disturbed."""
    store = tmp_path_factory.mktemp("clean") / "graph.ecgl"
    shutil.copytree(grown, store)
    assert run_cli("--quiet", "compact", store).code == 0
    return bytes_of(store)


@pytest.fixture
def store(grown: Path, tmp_path: Path) -> Path:
    path = tmp_path / "graph.ecgl"
    shutil.copytree(grown, path)
    return path


def kill_at(number: int) -> None:
    """In a child: die before a rename or a replacement, before the exchange of the stores or right after it."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(function: Any, *, also_after: bool) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            count()
            found = function(*arguments, **named)
            if also_after:
                count()
            return found

        return call

    for name in ("rename", "replace"):
        setattr(os, name, dying(getattr(os, name), also_after=False))
    staging.exchange = dying(staging.exchange, also_after=True)


@pytest.mark.faults
def test_killed_at_every_rename_the_store_is_old_or_new_and_the_next_run_cleans_up(
    grown: Path, compacted: dict[str, bytes], tmp_path: Path
) -> None:
    path, old, ended = tmp_path / "graph.ecgl", bytes_of(grown), []
    for number in range(1, 30):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(grown, path)
        child = start_child(kill_at, (number,), "--quiet", "compact", path)
        child.join(60)
        verify_store(path, at())
        found = bytes_of(path)
        assert found in (old, compacted)
        ended.append("old" if found == old else "new")
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        assert leftovers(tmp_path) != []
        ran = run_cli("--quiet", "compact", path)
        assert ran.code == 0, ran.stderr
        assert bytes_of(path) == compacted
        assert leftovers(tmp_path) == []
    # The metadata of the features, the manifest, before the exchange; after it the new store is there.
    assert ended == ["old"] * (len(ended) - 2) + ["new"] * 2
    assert len(ended) >= 5


@pytest.mark.faults
def test_a_drop_that_is_killed_at_any_rename_has_happened_or_not(grown: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.array([1, 5, 3_499]))
    path, ended = tmp_path / "graph.ecgl", []
    for number in range(1, 20):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(grown, path)
        child = start_child(kill_at, (number,), "--quiet", "drop", path, "--nodes", ids)
        child.join(60)
        verify_store(path, at())
        graph = GraphStore.open(path)
        assert (graph.generation, graph.num_dropped) in ((1, 0), (2, 3))
        ended.append(graph.num_dropped)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        assert run_cli("--quiet", "drop", path, "--nodes", ids).code == 0
        assert (GraphStore.open(path).num_dropped, leftovers(tmp_path)) == (3, [])
    # The manifest, the directory and the head.
    assert ended == [0] * (len(ended) - 1) + [3]
    assert len(ended) >= 4


def test_while_somebody_has_the_store_open_it_is_not_replaced(
    store: Path, compacted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "WAITED_SECONDS", 0.05)
    old = bytes_of(store)
    features = GraphStore.open(store).require_features()  # any part of an open store holds it
    with pytest.raises(LockedError, match="being read") as refusal:
        compact_store(store, at())
    assert refusal.value.exit_code == 3
    assert (bytes_of(store), leftovers(store.parent)) == (old, [])
    assert features.rows_dense([3_400]).shape == (1, 8)
    ran = run_cli("compact", store)
    assert ran.code == 3
    assert "fix: wait for runs" in ran.stderr
    del features
    assert run_cli("--quiet", "compact", store).code == 0
    assert bytes_of(store) == compacted


def test_an_append_needs_nobody_to_close_the_store_and_readers_keep_their_generation(store: Path) -> None:
    graph = GraphStore.open(store)
    new = array_source(np.array([[0], [3_500]]), x=np.zeros((1, 8)), y=[1], columns={"year": np.array([2020])})
    append_store(new, store, at())
    assert (graph.generation, graph.num_nodes, GraphStore.open(store).num_nodes) == (1, 3_500, 3_501)
    assert graph.edges.in_degrees().sum() == graph.num_edges


def test_a_store_that_grows_while_it_is_compacted_keeps_what_came(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = compact.build_store

    def grow_first(*arguments: Any, **choices: Any) -> Any:
        new = array_source(np.array([[0], [1]]), num_nodes=0, adds=True)
        append_store(new, store, at())
        return build(*arguments, **choices)

    monkeypatch.setattr(compact, "build_store", grow_first)
    with pytest.raises(StoreError, match="changed since"):
        compact_store(store, at())
    assert GraphStore.open(store).generation == 2
    assert leftovers(store.parent) == []


def test_a_store_on_a_disk_that_may_only_be_read_is_opened(store: Path) -> None:
    store.chmod(0o555)
    try:
        graph = GraphStore.open(store)
        assert graph.files.hold is not None
        assert graph.edges.in_degrees().sum() == graph.num_edges
    finally:
        store.chmod(0o755)


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_an_open_store_takes_one_descriptor_and_gives_it_back(store: Path) -> None:
    before = num_descriptors()
    graph = GraphStore.open(store)
    assert num_descriptors() == before + 1
    del graph
    assert num_descriptors() == before
