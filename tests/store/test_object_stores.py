"""Stores on an object store: the bytes and answers that they have on a disk, fetched when needed, put manifest last."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from ecgl_scale.base.objects.client import ObjectClient
from ecgl_scale.base.objects.fetch import RANGE_BYTES
from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import (
    CorruptStoreError,
    DoesNotFitError,
    EcglError,
    IncompleteStoreError,
    InvalidInputError,
    LockedError,
    StorageError,
    StoreExistsError,
)
from ecgl_scale.store.build import build_store
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.publish import build_store_at
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from tests.cli_runner import run_cli
from tests.grown_stores import SMALL, make_both
from tests.object_server import Bucket
from tests.resources import at
from tests.store.graphs import bytes_of, random_edges

NUM_NODES = 200_000
"""Four blocks of rows."""


def source(seed: int = 0, *, is_sparse: bool = False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_NODES, 4)).astype(np.float32)
    if is_sparse:
        x = sparse.random(NUM_NODES, 50, density=0.01, format="csr", dtype=np.float32, random_state=seed)
    return array_source(random_edges(NUM_NODES, 20_000, seed), x=x, y=np.arange(NUM_NODES) % 7)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "graph.ecgl"
    build_store(source(), path, at())
    return path


@pytest.fixture
def url(bucket: Bucket, local: Path) -> ObjectUrl:
    """The same store at a URL, of which nothing was fetched."""
    for name, data in bytes_of(local).items():
        bucket.put(f"stores/graph.ecgl/{name}", data)
    bucket.server.requests.clear()
    return bucket.url("stores/graph.ecgl")


def damage(bucket: Bucket, url: ObjectUrl, name: str) -> str:
    key = f"{url.key}/{name}"
    data = bytearray(bucket.get(key))
    data[len(data) // 3] ^= 1
    bucket.put(key, bytes(data))
    return str(url / name)


def refusal(call, *arguments, **settings) -> EcglError:
    with pytest.raises(EcglError) as refused:
        call(*arguments, **settings)
    return refused.value


# --- reading


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_store_at_a_url_reads_as_on_a_disk(bucket: Bucket, tmp_path: Path, is_sparse: bool) -> None:
    build_store(source(is_sparse=is_sparse), tmp_path / "graph.ecgl", at())
    for name, data in bytes_of(tmp_path / "graph.ecgl").items():
        bucket.put(f"graph.ecgl/{name}", data)
    here, there = GraphStore.open(tmp_path / "graph.ecgl"), GraphStore.open(f"s3://{bucket.name}/graph.ecgl")
    assert there.identity == here.identity
    np.testing.assert_array_equal(there.to_edge_index(), here.to_edge_index())
    np.testing.assert_array_equal(there.column("label"), here.column("label"))
    ids = np.array([7, 199_999, 7, 100_000])
    np.testing.assert_array_equal(there.require_features().rows_dense(ids), here.require_features().rows_dense(ids))
    for block in here.tiles.blocks():
        np.testing.assert_array_equal(there.tiles.read(block).values, here.tiles.read(block).values)
    assert repr(there).startswith(f"GraphStore('s3://{bucket.name}/graph.ecgl'")


def test_only_files_that_are_used_are_fetched_and_only_once(bucket: Bucket, url: ObjectUrl, tmp_path: Path) -> None:
    for _ in range(2):
        ran = run_cli("rank", url, "--out", tmp_path / "out.parquet", "--ignore-features")
        assert ran.code == 0, ran.stderr
    asked = [name.removeprefix(f"{url.key}/") for name in bucket.asked_for() if name.startswith(f"{url.key}/")]
    fetched = [name for name in asked if name != "manifest.json"]
    # zarr.json says what the features are, and is looked at when any store is opened.
    blocks = [f"{folder}/{i:05d}.arrow" for folder in ("edges", "tiles") for i in range(4)]
    assert sorted(fetched) == sorted([*blocks, "features.zarr/zarr.json"])


def test_ranking_gives_the_bytes_that_it_gives_locally(url: ObjectUrl, local: Path, tmp_path: Path) -> None:
    for store, name in ((url, "there"), (local, "here")):
        ran = run_cli("rank", store, "--out", tmp_path / name, "--kind", "both", "--json")
        assert ran.code == 0, ran.stderr
        assert json.loads(ran.stdout)["store"] == str(store)
    assert pq.read_table(tmp_path / "there").equals(pq.read_table(tmp_path / "here"))
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


def test_files_that_are_read_in_order_are_fetched_ahead(bucket: Bucket, url: ObjectUrl) -> None:
    graph = GraphStore.open(url)
    graph.edges.read(graph.edges.blocks()[0])
    graph.files._ahead.shutdown()  # type: ignore[attr-defined]
    names = [name for name in bucket.asked_for() if "/edges/" in name]
    assert sorted(names) == [f"{url.key}/edges/0000{i}.arrow" for i in (0, 1)]


def test_a_file_out_of_order_is_fetched_alone(bucket: Bucket, url: ObjectUrl) -> None:
    graph = GraphStore.open(url)
    graph.edges.read(graph.edges.blocks()[1])
    graph.files._ahead.shutdown()  # type: ignore[attr-defined]
    assert [name for name in bucket.asked_for() if "/edges/" in name] == [f"{url.key}/edges/00001.arrow"]


def test_workers_open_the_store_by_its_url(url: ObjectUrl, tmp_path: Path) -> None:
    report = verify_store(url, at(executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work"))
    assert report.num_edges == GraphStore.open(url).num_edges


def test_a_store_that_was_replaced_is_seen_as_the_new_one(bucket: Bucket, url: ObjectUrl) -> None:
    before = GraphStore.open(url).to_edge_index()
    build_store_at(source(seed=1), url, at(), overwrite=True)
    after = GraphStore.open(url).to_edge_index()
    assert not np.array_equal(before, after)


# --- checks


def test_verify_reads_every_byte_of_the_objects_and_none_twice(bucket: Bucket, url: ObjectUrl, local: Path) -> None:
    ran = run_cli("verify", url)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith(f"{url}: good; ")
    ranges = {f"{url.key}/{name}": max(-(-len(data) // RANGE_BYTES), 1) for name, data in bytes_of(local).items()}
    assert Counter(bucket.asked_for()) == ranges


def test_verify_finds_damage_of_an_object_that_was_fetched_before(bucket: Bucket, url: ObjectUrl) -> None:
    assert run_cli("verify", url).code == 0
    where = damage(bucket, url, "edges/00002.arrow")
    ran = run_cli("verify", url)
    assert (ran.code, where in ran.stderr) == (3, True)


@pytest.mark.parametrize("name", ["edges/00001.arrow", "tiles/00000.arrow", "nodes.arrow", "features.zarr/c.0.0"])
def test_a_flipped_byte_is_found_when_the_object_is_first_used(bucket: Bucket, url: ObjectUrl, name: str) -> None:
    where = damage(bucket, url, name)
    uses = {
        "edges/00001.arrow": lambda graph: graph.to_edge_index(),
        "tiles/00000.arrow": lambda graph: graph.tiles.read(graph.tiles.blocks()[0]),
        "nodes.arrow": lambda graph: graph.column("label"),
        "features.zarr/c.0.0": lambda graph: graph.require_features().rows_dense([0]),
    }
    error = refusal(uses[name], GraphStore.open(url))
    assert (type(error), error.where) == (CorruptStoreError, where)
    verified = run_cli("verify", url)
    assert (verified.code, where in verified.stderr) == (3, True)


def test_fast_verification_samples_objects_and_keeps_none(bucket: Bucket, url: ObjectUrl) -> None:
    assert run_cli("verify", url, "--fast").code == 0
    assert not bucket.cache.exists()
    key = f"{url.key}/edges/00000.arrow"
    data = bytearray(bucket.get(key))
    data[:8] = b"swapped!"
    bucket.put(key, bytes(data))
    ran = run_cli("verify", url, "--fast")
    assert (ran.code, str(url / "edges/00000.arrow") in ran.stderr) == (3, True)


def test_info_reads_the_manifest_alone(bucket: Bucket, url: ObjectUrl, local: Path) -> None:
    shown, here = (json.loads(run_cli("info", store, "--json").stdout) for store in (url, local))
    assert {**shown, "store": ""} == {**here, "store": ""}
    assert shown["store"] == str(url)
    assert bucket.asked_for() == [f"{url.key}/manifest.json"]
    assert not bucket.cache.exists()


def test_objects_that_are_missing_too_short_or_too_many_are_refused_at_open(bucket: Bucket, url: ObjectUrl) -> None:
    key = f"{url.key}/edges/00000.arrow"
    data = bucket.get(key)
    bucket.put(key, data[:-1])
    error = refusal(GraphStore.open, url)
    assert (type(error), error.where) == (CorruptStoreError, str(url / "edges/00000.arrow"))
    bucket.delete(key)
    error = refusal(GraphStore.open, url)
    assert (type(error), error.where) == (IncompleteStoreError, str(url / "edges/00000.arrow"))
    bucket.put(key, data)
    bucket.put(f"{url.key}/notes.txt", b"mine")
    error = refusal(GraphStore.open, url)
    assert (type(error), error.where) == (CorruptStoreError, str(url / "notes.txt"))


def test_where_there_is_no_store_that_is_said(bucket: Bucket, url: ObjectUrl) -> None:
    assert type(refusal(GraphStore.open, bucket.url("nothing"))) is IncompleteStoreError
    bucket.put(f"{url.key}/manifest.json", b"{}")
    assert type(refusal(GraphStore.open, url)) is CorruptStoreError
    ran = run_cli("info", "s3://no-such-bucket-here/x")
    assert (ran.code, "there is no such bucket" in ran.stderr) == (3, True)
    assert run_cli("info", "ftp://host/x").code == 3  # a path, as far as a shell's argument goes
    assert run_cli("info", "s3://UPPER?/x").code == 2


# --- the bound


def test_a_store_larger_than_the_bound_is_refused_before_anything_is_fetched(
    bucket: Bucket, url: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECGL_CACHE_SIZE", "1MiB")
    ran = run_cli("rank", url, "--out", tmp_path / "out", "--ignore-features")
    assert ran.code == 4
    assert "ECGL_CACHE_SIZE" in ran.stderr
    assert not [name for name in bucket.asked_for() if name.endswith(".arrow")]
    assert run_cli("info", url).code == 0


def test_two_stores_take_turns_in_a_mirror_that_holds_one(
    bucket: Bucket, url: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bucket.url("other.ecgl")
    build_store_at(source(seed=1), other, at())
    size_bytes = GraphStore.open(url).manifest.total_bytes
    monkeypatch.setenv("ECGL_CACHE_SIZE", str(size_bytes * 3 // 2))
    for _ in range(2):
        for store in (url, other):
            assert run_cli("verify", store).code == 0
            kept = sum(path.stat().st_size for path in bucket.cache.rglob("*") if path.is_file())
            assert size_bytes // 2 < kept < size_bytes * 3 // 2
    held = GraphStore.open(url)
    with pytest.raises(DoesNotFitError, match="in use"):
        GraphStore.open(other)
    assert held.to_edge_index().shape[0] == 2


# --- writing


def test_a_store_is_put_with_the_bytes_it_has_on_a_disk_and_the_manifest_last(bucket: Bucket, local: Path) -> None:
    url = bucket.url("new.ecgl")
    build_store_at(source(), url, at())
    assert bucket.objects("new.ecgl/") == bytes_of(local)
    puts = [name.removeprefix("new.ecgl/") for name in bucket.asked_for("PUT")]
    assert (puts[0], puts[-1]) == (".uploading", "manifest.json")
    assert not list((bucket.cache / "building").rglob("*.arrow"))


def test_what_was_just_put_is_not_fetched_again(bucket: Bucket) -> None:
    url = bucket.url("new.ecgl")
    build_store_at(source(), url, at())
    bucket.server.requests.clear()
    GraphStore.open(url).to_edge_index()
    assert bucket.asked_for() == ["new.ecgl/manifest.json"]


def test_commands_build_and_read_stores_at_urls(bucket: Bucket, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "in.npz", edge_index=rng.integers(0, 50, (2, 200)), x=rng.normal(size=(50, 3)))
    url = f"s3://{bucket.name}/made/in.ecgl"
    made = run_cli("ingest", "npz", tmp_path / "in.npz", url)
    assert made.code == 0, made.stderr
    assert made.stdout.startswith(f"{url}: 50 nodes")
    again = run_cli("ingest", "npz", tmp_path / "in.npz", url)
    assert (again.code, "--overwrite" in again.stderr) == (3, True)
    assert run_cli("ingest", "npz", tmp_path / "in.npz", url, "--overwrite").code == 0
    assert run_cli("verify", url).code == 0
    inside = run_cli("ingest", "npz", tmp_path / "in.npz", f"{url}/deeper/x.ecgl")
    assert (inside.code, "into a store" in inside.stderr) == (3, True)
    assert run_cli("generate", "kron", f"s3://{bucket.name}/made/kron.ecgl", "--scale", "8").code == 0


def test_an_upload_that_breaks_leaves_no_manifest_and_a_rerun_finishes_it(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecgl_scale.base.objects.client.MAX_RETRIES", 0)
    url = bucket.url("new.ecgl")
    bucket.server.answer = lambda method, path: 500 if method == "PUT" and path.endswith("nodes.arrow") else None
    with pytest.raises(StorageError):
        build_store_at(source(seed=1), url, at())
    left = bucket.objects("new.ecgl/")
    assert "manifest.json" not in left
    assert ".uploading" in left
    assert type(refusal(GraphStore.open, url)) is IncompleteStoreError
    bucket.server.answer = lambda method, path: None
    bucket.put("new.ecgl/edges/00009.arrow", b"of an upload that we know nothing of")
    assert type(refusal(build_store_at, source(), url, at())) is StoreExistsError
    bucket.delete("new.ecgl/edges/00009.arrow")
    build_store_at(source(), url, at())
    assert bucket.objects("new.ecgl/") == bytes_of(local)


def test_an_overwritten_store_leaves_nothing_of_the_old_one(bucket: Bucket, url: ObjectUrl) -> None:
    small = array_source(random_edges(50, 100), num_nodes=50)
    build_store_at(small, url, at(), overwrite=True)
    assert sorted(bucket.objects(f"{url.key}/")) == ["edges/00000.arrow", "manifest.json", "tiles/00000.arrow"]


def test_what_somebody_else_keeps_there_is_never_touched(bucket: Bucket) -> None:
    bucket.put("new.ecgl/thesis.pdf", b"years of work")
    for overwrite in (False, True):
        error = refusal(build_store_at, source(), bucket.url("new.ecgl"), at(), overwrite=overwrite)
        assert (type(error), error.where) == (StoreExistsError, f"s3://{bucket.name}/new.ecgl/thesis.pdf")
    bucket.put("new.ecgl/manifest.json", b'{"name": "an extension of a browser"}')
    assert type(refusal(build_store_at, source(), bucket.url("new.ecgl"), at(), overwrite=True)) is StoreExistsError
    assert sorted(bucket.objects("new.ecgl/")) == ["manifest.json", "thesis.pdf"]


def test_of_two_that_put_the_same_store_at_once_one_gives_way(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ObjectClient.list
    calls: list[str] = []

    def meddle(client: ObjectClient):
        calls.append("")
        if len(calls) == 2:  # after all files were put
            bucket.put("new.ecgl/nodes.arrow", bytes(len(bucket.get("new.ecgl/nodes.arrow"))))
        return listed(client)

    monkeypatch.setattr(ObjectClient, "list", meddle)
    with pytest.raises(LockedError, match=r"nodes\.arrow"):
        build_store_at(source(), bucket.url("new.ecgl"), at())
    assert "manifest.json" not in bucket.objects("new.ecgl/")


def test_a_store_that_another_put_first_is_not_replaced(bucket: Bucket) -> None:
    def be_quicker(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("/manifest.json"):
            bucket.server.answer = lambda *_: None
            bucket.put("new.ecgl/manifest.json", b"theirs")

    bucket.server.answer = be_quicker
    with pytest.raises(StoreExistsError, match="meanwhile"):
        build_store_at(source(), bucket.url("new.ecgl"), at())
    assert bucket.get("new.ecgl/manifest.json") == b"theirs"


def test_a_bucket_that_is_not_there_is_found_out_before_the_build(tmp_path: Path, bucket: Bucket) -> None:
    np.savez(tmp_path / "in.npz", edge_index=[[0, 1], [1, 0]], num_nodes=2)
    ran = run_cli("ingest", "npz", tmp_path / "in.npz", "s3://no-such-bucket-here/x.ecgl")
    assert (ran.code, "no such bucket" in ran.stderr) == (3, True)
    assert not (bucket.cache / "building").exists()
    with pytest.raises(InvalidInputError):
        build_store_at(source(), ObjectUrl("s3", "no-such-bucket-here", "x"), at())


def test_a_grown_store_at_a_url_is_read_as_on_a_disk(bucket: Bucket, tmp_path: Path):
    grown = make_both(tmp_path, SMALL, num_edges=100).grown
    for name, data in bytes_of(grown.path).items():
        bucket.put(f"stores/grown.ecgl/{name}", data)
    there = GraphStore.open(bucket.url("stores/grown.ecgl"))
    np.testing.assert_array_equal(there.to_edge_index(), grown.to_edge_index())
    np.testing.assert_array_equal(there.column("year"), grown.column("year"))
    assert (there.generation, there.identity) == (grown.generation, grown.identity)
    second = GraphStore.open(f"{bucket.url('stores/grown.ecgl')}#generation=1")
    assert (second.num_nodes, second.address) == (SMALL[1], f"{bucket.url('stores/grown.ecgl')}#generation=1")
    for fast in (True, False):
        assert verify_store(there.path, at(), fast=fast).num_edges == grown.num_edges
    bucket.put("stores/grown.ecgl/generations/0002/stranger.arrow", b"x")
    assert "does not name" in str(refusal(GraphStore.open, there.path))
