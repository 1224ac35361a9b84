"""Tiles with sources in the order of their degrees: chosen by the graph, the same for all, and found if damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.store import build
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.edges import choose_order
from ecgl_scale.store.edges.order import map_order, write_order
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.format import ORDER_NAME, Manifest, encode_manifest, record_files
from ecgl_scale.store.signed_json import encode_signed
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from tests import naive
from tests.grown_stores import ACROSS_RANGES, make_both
from tests.resources import at
from tests.store.graphs import bytes_of

NUM_NODES = 2 * 65_536 + 999
ORDERED = BuildOptions(keep_duplicates=True, self_loops="keep", source_order="degree")
SETTINGS = PageRankSettings(tol=0.0, max_iter=6)


def hub_edges(num_nodes: int = NUM_NODES, num_edges: int = 60_000) -> np.ndarray:
    """Half of the edges come out of a few nodes that are far apart; the last nodes have none."""
    random = np.random.default_rng(3)
    edges = random.integers(0, num_nodes - num_nodes // 9, (2, num_edges))
    edges[0, ::2] = random.integers(0, 20, num_edges // 2) * (num_nodes // 20)
    return edges


@pytest.fixture
def always(monkeypatch):
    """Every graph gets an order, however small, and whether it pays or not."""
    monkeypatch.setattr(choose_order, "MIN_EDGES", 0)
    monkeypatch.setattr(choose_order, "WORTH_SHARE", 100.0)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory):
    path = tmp_path_factory.mktemp("ordered") / "store"
    return GraphStore.from_edge_index(hub_edges(), path=path, num_nodes=NUM_NODES, options=ORDERED)


def test_columns_are_groups_of_degrees_with_nodes_in_their_order(ordered):
    degrees = ordered.edges.out_degrees()
    digits = np.array([int(degree).bit_length() for degree in degrees])
    expected = np.lexsort((np.arange(NUM_NODES), -digits))
    np.testing.assert_array_equal(np.argsort(ordered.tiles.order.columns), expected)


def test_tiles_hold_the_edges_by_their_columns(ordered):
    assert verify_store(ordered.path, at()).num_edges == 60_000
    found, columns = [], ordered.tiles.order.columns
    for block in ordered.tiles.blocks():
        stripe, width = ordered.tiles.read(block), ordered.tiles.width(block)
        tile = np.repeat(np.arange(stripe.offsets.size - 1), np.diff(stripe.offsets))
        rows = block.start + (tile % width << 16) + (stripe.values >> 16)
        found.append(np.stack([rows, (tile // width << 16) + (stripe.values & 0xFFFF)]))
    source, target = hub_edges()
    expected = np.stack([target, columns[source]])
    found = np.concatenate(found, axis=1)
    np.testing.assert_array_equal(found[:, np.lexsort(found)], expected[:, np.lexsort(expected)])


def test_ranks_are_those_of_every_edge_added_by_itself(tmp_path):
    edges = hub_edges(60, 200)
    graph = GraphStore.from_edge_index(edges, path=tmp_path / "store", num_nodes=60, options=ORDERED)
    reset = np.arange(60.0)
    settings = PageRankSettings(tol=1e-13, max_iter=400, dangling="reset")
    found = rank_importance(graph, at(), reset=reset, settings=settings).ranks
    expected = naive.pagerank(edges.T.tolist(), 60, reset=reset.tolist(), dangling="reset")
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_ranks_have_the_same_bits_whoever_sweeps(ordered, tmp_path, precision):
    settings = PageRankSettings(tol=0.0, max_iter=6, precision=precision)
    reset = np.random.default_rng(0).random(NUM_NODES)
    worker = at(threads=2, executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work")
    first, *others = (
        rank_importance(ordered, resources, reset=reset, settings=settings)
        for resources in (at(threads=1), at(threads=2), worker)
    )
    for other in others:
        assert other.ranks.tobytes() == first.ranks.tobytes()
    plain = GraphStore.from_edge_index(hub_edges(), path=tmp_path / "plain", num_nodes=NUM_NODES)
    expected = rank_importance(plain, at(), reset=reset, settings=settings).ranks
    np.testing.assert_allclose(first.ranks, expected, rtol=1e-5 if precision == "float32" else 1e-12)


def test_a_store_has_the_same_bytes_for_any_memory_threads_and_workers(tmp_path, monkeypatch):
    source, options = array_source(hub_edges(), num_nodes=NUM_NODES), BuildOptions(source_order="degree")
    build_store(source, tmp_path / "two", at(threads=2), options=options)
    build_store(source, tmp_path / "one", at(threads=1), options=options)
    build_store(source, tmp_path / "workers", at(executor=ScriptedExecutor(tmp_path / "counts")), options=options)
    assert list((tmp_path / "counts").glob("ingest.tiles/*"))
    tight = MemoryShares(threads=1, block_edges=1_000, kept_bytes=0, share_bytes=0)
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: tight)
    build_store(source, tmp_path / "tight", at(), options=options)
    expected = bytes_of(tmp_path / "two")
    assert ORDER_NAME in expected
    for name in ("one", "workers", "tight"):
        assert bytes_of(tmp_path / name) == expected


@pytest.mark.parametrize("options", [BuildOptions(symmetrise=True), BuildOptions()], ids=["symmetric", "directed"])
def test_a_store_that_grows_keeps_its_order_until_it_is_compacted(tmp_path, always, options):
    both = make_both(tmp_path, ACROSS_RANGES, num_edges=8_000, options=options, kind="none")
    before = (tmp_path / "grown.ecgl" / ORDER_NAME).read_bytes()
    assert both.grown.tiles.order.columns.size == ACROSS_RANGES[0]
    assert both.whole.tiles.order.columns.size == ACROSS_RANGES[-1]
    for store in (both.grown, both.whole):
        verify_store(store.path, at())
    wanted = rank_importance(both.whole, at(), settings=SETTINGS).ranks
    worker = at(threads=2, executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work")
    for resources in (at(threads=1), worker):
        found = rank_importance(both.grown, resources, settings=SETTINGS).ranks
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert (tmp_path / "grown.ecgl" / ORDER_NAME).read_bytes() == before
    path, whole = both.grown.path, bytes_of(both.whole.path)
    del both, store  # nobody has the store open
    compact_store(path, at())
    compacted = bytes_of(path)
    assert {name for name in whole if whole[name] != compacted.get(name)} <= {"manifest.json"}
    assert compacted.keys() == whole.keys()


def test_dropped_nodes_take_no_part_in_any_order(tmp_path, ordered):
    gone, found = np.arange(7, NUM_NODES, 500), {}
    for name, options in (("ordered", ORDERED), ("plain", replace(ORDERED, source_order="none"))):
        GraphStore.from_edge_index(hub_edges(), path=tmp_path / name, num_nodes=NUM_NODES, options=options)
        drop_nodes(tmp_path / name, gone, at())
        found[name] = rank_importance(GraphStore.open(tmp_path / name), at(), settings=SETTINGS).ranks
        assert not found[name][gone].any()
    np.testing.assert_allclose(found["ordered"], found["plain"], rtol=1e-12)
    assert abs(found["ordered"] - rank_importance(ordered, at(), settings=SETTINGS).ranks).sum() > 1e-6


def test_a_flipped_bit_of_the_order_is_found(tmp_path):
    store = tmp_path / "store"
    GraphStore.from_edge_index(hub_edges(), path=store, num_nodes=NUM_NODES, options=ORDERED)
    opened = GraphStore.open(store)
    content = bytearray((store / ORDER_NAME).read_bytes())
    content[len(content) // 2] ^= 1
    (store / ORDER_NAME).write_bytes(content)
    for look in (lambda: rank_importance(opened, at()), lambda: verify_store(store, at())):
        with pytest.raises(CorruptStoreError, match=ORDER_NAME):
            look()


def test_a_forged_order_is_found(tmp_path):
    store = tmp_path / "store"
    GraphStore.from_edge_index(hub_edges(900, 300), path=store, num_nodes=900, options=ORDERED)
    manifest, columns = Manifest.read(store), np.zeros(900, np.uint32)
    (store / ORDER_NAME).unlink()
    forged = record_files(store, {ORDER_NAME: write_order(store / ORDER_NAME, columns)})
    manifest.files.update(forged)
    manifest.write(store)
    with pytest.raises(CorruptStoreError, match="column of another"):
        verify_store(store, at())
    (store / ORDER_NAME).unlink()
    written: WrittenFile = write_order(store / ORDER_NAME, np.full(900, 900, np.uint32))
    with pytest.raises(CorruptStoreError, match="a column for each of 900 nodes"):
        map_order(store / ORDER_NAME, written, 900)


def test_an_order_is_chosen_only_where_it_saves_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(choose_order, "MIN_EDGES", 50_000)
    random, nodes = np.random.default_rng(0), np.arange(NUM_NODES)
    scattered = np.stack([random.integers(0, NUM_NODES // 16, 200_000) * 16, random.integers(0, NUM_NODES, 200_000)])
    graphs = {
        "a few scattered sources": (scattered, True),
        "too small": (scattered[:, :20_000], False),
        "neighbours": (np.stack([nodes, (nodes + random.integers(1, 9, NUM_NODES)) % NUM_NODES]), False),
    }
    for name, (edges, is_ordered) in graphs.items():
        build_store(array_source(edges, num_nodes=NUM_NODES), tmp_path / name, at())
        body = json.loads((tmp_path / name / "manifest.json").read_text())
        assert (ORDER_NAME in body["files"]) == is_ordered, name
        assert body["format_version"] == (3 if is_ordered else 1), name


def test_without_an_order_tiles_that_waited_for_it_have_the_same_bytes(tmp_path, monkeypatch):
    source = array_source(hub_edges(), num_nodes=NUM_NODES)
    build_store(source, tmp_path / "at once", at())
    monkeypatch.setattr(choose_order, "MIN_EDGES", 0)
    monkeypatch.setattr(choose_order, "WORTH_SHARE", 0.0)
    build_store(source, tmp_path / "after rows", at())
    assert bytes_of(tmp_path / "after rows") == bytes_of(tmp_path / "at once")


@pytest.mark.parametrize("change", [{"format_version": 1}, {"source_order": "by chance"}, {"source_order": None}])
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path, change):
    store = tmp_path / "store"
    GraphStore.from_edge_index(hub_edges(60, 200), path=store, num_nodes=60, options=ORDERED)
    body = {**json.loads(encode_manifest(Manifest.read(store))), **change}
    (store / "manifest.json").write_text(
        encode_signed({key: value for key, value in body.items() if value is not None})
    )
    with pytest.raises(CorruptStoreError):
        GraphStore.open(store)
