"""A compacted store has the bytes of one ingest of everything, whoever compacts it, and nobody sees it half done."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale import GraphStore
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.store import build
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from tests.resources import at
from tests.store.graphs import KEEP_ALL, bytes_of
from tests.store.growth import parts_of

DROP = BuildOptions()
OPTIONS = {
    "drop": DROP,
    "symmetric": BuildOptions(symmetrise=True),
    "with loops": BuildOptions(self_loops="add"),
    "keep all": KEEP_ALL,
}
STEPS = {
    "into the last block": (1_000, 1_400, 1_900),
    "past the last block": (65_530, 65_545, 200_000),
    "edges alone": (70_000, 70_000, 70_000),
}


def node_arrays(num_nodes, kind, seed=5):
    """Features, labels and a column for each node."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((num_nodes, 5)).astype(np.float32)
    x[random.random(x.shape) < 0.8] = 0
    y = random.permutation(np.arange(num_nodes) % 8 - 1)
    y[:8] = np.arange(8) - 1
    columns = {"year": random.integers(1990, 2020, num_nodes), "is_open": random.random(num_nodes) < 0.5}
    return (scipy.sparse.csr_array(x) if kind == "sparse" else x), y, columns


def feature_choices(kind):
    stored = {"sparse": "sparse", "dense": "dense", "float16": "dense"}[kind]
    return {"features_as": stored, "feature_dtype": "float16" if kind == "float16" else "float32"}


def source_of(edges, start, stop, arrays):
    x, y, columns = arrays
    rows = {name: values[start:stop] for name, values in columns.items()}
    return array_source(edges, x=x[start:stop], y=y[start:stop], num_nodes=stop - start, columns=rows, adds=True)


def grow(path, num_nodes, options, kind="dense", seed=0):
    """Ingest, then append step by step; and beside it one ingest of all."""
    parts, arrays = parts_of(num_nodes, 3_000, seed), node_arrays(num_nodes[-1], kind)
    build_store(source_of(parts[0], 0, num_nodes[0], arrays), path, at(), options=options, **feature_choices(kind))
    for edges, start, stop in zip(parts[1:], num_nodes, num_nodes[1:], strict=False):
        append_store(source_of(edges, start, stop, arrays), path, at())
    once = path.with_name("once")
    everything = source_of(np.concatenate(parts, axis=1), 0, num_nodes[-1], arrays)
    build_store(everything, once, at(), options=options, **feature_choices(kind))
    return once


def assert_equal_stores(found, wanted):
    """Every byte but the manifest's, and the manifest but for where the graph came from."""
    ours, theirs = bytes_of(found), bytes_of(wanted)
    ours.pop("manifest.json")
    theirs.pop("manifest.json")
    assert ours == theirs
    manifests = [
        dataclasses.replace(GraphStore.open(store).manifest, provenance={}, written_by="") for store in (found, wanted)
    ]
    assert manifests[0] == manifests[1]
    assert GraphStore.open(found).identity == GraphStore.open(wanted).identity
    verify_store(found, at())
    assert [path.name for path in found.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("num_nodes", STEPS.values(), ids=STEPS)
def test_a_compacted_store_has_the_bytes_of_one_ingest(tmp_path, num_nodes, options):
    once = grow(tmp_path / "store", num_nodes, options)
    done = compact_store(tmp_path / "store", at())
    assert (done.num_generations, done.manifest.num_nodes) == (len(num_nodes), num_nodes[-1])
    assert_equal_stores(tmp_path / "store", once)


@pytest.mark.parametrize("kind", ["sparse", "float16"])
def test_features_of_every_kind_are_those_of_one_ingest(tmp_path, kind):
    once = grow(tmp_path / "store", (900, 1_000, 66_000), DROP, kind)
    compact_store(tmp_path / "store", at())
    assert_equal_stores(tmp_path / "store", once)


def test_what_is_compacted_can_grow_and_be_compacted_again(tmp_path):
    once = grow(tmp_path / "store", (900, 1_000, 1_200), DROP)
    compact_store(tmp_path / "store", at())
    edges, arrays = parts_of([1_300], 500, 9)[0], node_arrays(1_300, "dense")
    for store in (tmp_path / "store", once):
        append_store(source_of(edges, 1_200, 1_300, arrays), store, at())
        compact_store(store, at())
    assert_equal_stores(tmp_path / "store", once)
    provenance = GraphStore.open(tmp_path / "store").manifest.provenance
    assert [entry["kind"] for entry in provenance["appended"]] == [provenance["kind"]] * 3


def test_the_bytes_depend_on_neither_memory_nor_threads_nor_who_works(tmp_path, monkeypatch):
    once = grow(tmp_path / "store", (90_000, 140_000, 141_000), BuildOptions(symmetrise=True))
    compact_store(tmp_path / "store", at())
    for number, shares in enumerate([(3, 700, 0, 1 << 15), (1, 5_000, 0, 1 << 16)]):
        store = tmp_path / f"small-{number}"
        store.mkdir()
        grow(store / "store", (90_000, 140_000, 141_000), BuildOptions(symmetrise=True))
        monkeypatch.setattr(build.MemoryShares, "of", lambda *_, shares=shares, **__: MemoryShares(*shares))
        compact_store(store / "store", at(executor=ScriptedExecutor(store / "counts") if number else None))
        monkeypatch.undo()
        assert_equal_stores(store / "store", once)
    assert_equal_stores(tmp_path / "store", once)


def test_a_store_of_one_generation_is_left_as_it_is(tmp_path):
    once = grow(tmp_path / "store", (900, 1_000), DROP)
    before = bytes_of(once)
    (tmp_path / ".once.building").mkdir()
    (tmp_path / ".once.building" / "left").touch()
    assert compact_store(once, at()).num_generations == 1
    assert bytes_of(once) == before
    assert not (tmp_path / ".once.building").exists()
