"""An append to a store on an object store: the objects that it would be as files, the head last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import EcglError, InvalidInputError, LockedError, StoreError
from ecgl_scale.store import put_generation
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.publish import build_store_at
from ecgl_scale.store.put_generation import PutGeneration
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.store.view import read_view
from tests.cli_runner import run_cli
from tests.object_server import Bucket
from tests.resources import at
from tests.store.graphs import bytes_of, random_edges

OLD, NEW = 70_000, 75_000


def old_source():
    return array_source(random_edges(OLD, 4_000), x=np.ones((OLD, 2), np.float32), y=np.arange(OLD) % 3)


def new_source(seed: int = 1):
    edges = random_edges(OLD + NEW, 5_000, seed)
    return array_source(edges, x=np.full((NEW, 2), seed, np.float32), y=np.arange(NEW) % 4)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "g.ecgl"
    build_store(old_source(), path, at())
    return path


@pytest.fixture
def url(bucket: Bucket, local: Path) -> ObjectUrl:
    for name, data in bytes_of(local).items():
        bucket.put(f"g.ecgl/{name}", data)
    return bucket.url("g.ecgl")


@pytest.fixture(scope="module")
def grown(local: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("grown") / "g.ecgl"
    build_store(old_source(), path, at())
    append_store(new_source(), path, at())
    return bytes_of(path)


def is_old(bucket: Bucket, local: Path) -> bool:
    there = bucket.objects("g.ecgl/")
    return all(there[name] == data for name, data in bytes_of(local).items())


@pytest.mark.parametrize("by_workers", [False, True])
def test_an_append_puts_the_bytes_that_it_would_write(
    bucket: Bucket, url: ObjectUrl, grown: dict[str, bytes], tmp_path: Path, by_workers: bool
) -> None:
    resources = at(executor=ScriptedExecutor(tmp_path / "counts")) if by_workers else at()
    append_store(new_source(), url, resources)
    assert bucket.objects("g.ecgl/") == grown
    graph = GraphStore.open(url)
    assert (graph.num_nodes, graph.generation, graph.num_classes) == (OLD + NEW, 1, 4)
    verify_store(url, at())
    assert not list(bucket.cache.rglob("generation-*"))


def test_the_head_is_put_last_and_what_was_cut_off_is_put_again(
    bucket: Bucket, url: ObjectUrl, local: Path, grown: dict[str, bytes]
) -> None:
    fails_at = "g.ecgl/generations/0001/nodes.arrow"
    bucket.server.answer = lambda method, path: 403 if method == "PUT" and path.endswith(fails_at) else None
    with pytest.raises(EcglError):
        append_store(new_source(), url, at())
    assert bucket.objects("g.ecgl/") == bytes_of(local)
    bucket.server.answer = lambda *_: None
    bucket.put("g.ecgl/generations/0001/edges/00009.arrow", b"left by a process that was killed")
    assert GraphStore.open(url).num_nodes == OLD
    bucket.server.requests.clear()
    append_store(new_source(), url, at())
    assert bucket.asked_for("PUT")[-1] == "g.ecgl/manifest.json"
    assert bucket.objects("g.ecgl/") == grown


def test_a_head_that_changed_meanwhile_is_refused(
    bucket: Bucket, url: ObjectUrl, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = (local / "manifest.json").read_bytes() + b" "
    commit = PutGeneration.commit

    def meanwhile(self: PutGeneration, *arguments: object) -> None:
        bucket.put("g.ecgl/manifest.json", changed)
        commit(self, *arguments)

    monkeypatch.setattr(PutGeneration, "commit", meanwhile)
    with pytest.raises(StoreError, match="the store has changed since"):
        append_store(new_source(), url, at())
    assert bucket.get("g.ecgl/manifest.json") == changed


def test_objects_that_another_machine_has_replaced_are_not_taken_for_ours(
    bucket: Bucket, url: ObjectUrl, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = put_generation.refuse_other_writer

    def meanwhile(*arguments: object) -> None:
        bucket.put("g.ecgl/generations/0001/nodes.arrow", b"of another machine")
        refuse(*arguments)

    monkeypatch.setattr(put_generation, "refuse_other_writer", meanwhile)
    with pytest.raises(LockedError):
        append_store(new_source(), url, at())
    assert is_old(bucket, local)


def test_bad_input_puts_nothing(bucket: Bucket, url: ObjectUrl, local: Path) -> None:
    with pytest.raises(InvalidInputError, match="ids from 0 to 69999"):
        append_store(array_source([[0], [OLD]], adds=True), url, at())
    assert bucket.objects("g.ecgl/") == bytes_of(local)


def test_the_command_takes_a_url(bucket: Bucket, url: ObjectUrl, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", edge_index=np.array([[0, 1], [OLD - 1, 69_000]]))
    ran = run_cli("append", "npz", tmp_path / "new.npz", url)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith(f"{url}: generation 1: 0 new nodes, 2 new edges")
    assert read_view(url).manifest.num_nodes == OLD
    assert run_cli("append", "npz", tmp_path / "new.npz", bucket.url("nothing")).code == 3


def test_a_store_that_has_grown_can_be_replaced_as_a_whole(bucket: Bucket, url: ObjectUrl, local: Path) -> None:
    append_store(new_source(), url, at())
    bucket.put("g.ecgl/generations/0002/nodes.arrow", b"left by a process that was killed")
    build_store_at(old_source(), url, at(), overwrite=True)
    assert bucket.objects("g.ecgl/") == bytes_of(local)
