"""Edges of some nodes are those that a whole reading gives, and only their pages are touched."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.errors import CorruptStoreError, UsageError
from ecgl_scale.store import graph as graph_module
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.edges.some_rows import SomeRows, rows_of
from ecgl_scale.store.graph import GraphStore
from tests.store.graphs import random_edges
from tests.store.growth import grow_store, parts_of


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return GraphStore.from_edge_index(
        random_edges(5000, 40_000), path=tmp_path_factory.mktemp("g") / "g", num_nodes=5000
    )


@pytest.mark.parametrize("count", [0, 1, 37, 5000])
def test_rows_are_those_of_a_whole_reading(graph, count):
    ids = np.sort(np.random.default_rng(0).choice(5000, count, replace=False))
    found, stored = rows_of(graph.edges, ids), SomeRows(graph.edges, threads=2)
    wanted = [graph.edges.in_neighbours(int(node)) for node in ids]
    assert np.diff(found.offsets).tolist() == [row.size for row in wanted]
    np.testing.assert_array_equal(found.values, np.concatenate([np.empty(0, np.uint32), *wanted]))
    np.testing.assert_array_equal(stored.degrees(ids), np.diff(found.offsets))
    assert stored.read_bytes == 16 * count


@pytest.mark.parametrize(("ids", "words"), [([5, 3], "ascend"), ([3, 3], "ascend"), ([5000], "5000"), ([-1], "-1")])
def test_ids_that_do_not_ascend_or_do_not_exist_are_refused(graph, ids, words):
    with pytest.raises(UsageError, match=words):
        rows_of(graph.edges, np.array(ids))


def large_store(path):
    """Edges of 30 MiB in a single range of rows; a row has 100 of them."""
    random = np.random.default_rng(0)
    sources = random.integers(0, 60_000, (60_000, 128), dtype=np.int64)
    edges = np.stack([sources.ravel(), np.repeat(np.arange(60_000), 128)])
    return GraphStore.from_edge_index(edges, path=path, num_nodes=60_000)


def touched_bytes(folder: Path) -> int:
    """Pages of files below a folder that this process has mapped and looked at."""
    maps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    return sum(
        1024 * int(size) for size in re.findall(rf" {re.escape(str(folder))}/\S+\n(?:\w+:.*\n)*?Rss: +(\d+)", maps)
    )


def test_only_pages_with_wanted_rows_are_touched(tmp_path, monkeypatch):
    graph = large_store(tmp_path / "g")
    monkeypatch.setattr(graph_module, "READ_WHOLE_BELOW_BYTES", 0)
    graph, few = GraphStore.open(tmp_path / "g"), np.array([17, 30_000, 59_999])
    stored = SomeRows(graph.edges)
    rows = stored.read(few)
    edge_bytes = sum(path.stat().st_size for path in (tmp_path / "g" / "edges").iterdir())
    assert edge_bytes > 25 << 20
    assert 0 < touched_bytes(tmp_path / "g") < edge_bytes / 10
    whole = graph.edges.read(graph.edges.blocks()[0])
    assert touched_bytes(tmp_path / "g") > edge_bytes * 0.9  # a whole reading is seen
    np.testing.assert_array_equal(rows.values[: rows.offsets[1]], whole.values[whole.offsets[17] : whole.offsets[18]])


def damage(store: Path, bytes_there: bytes, at: float) -> None:
    path = next((store / "edges").iterdir())
    content = bytearray(path.read_bytes())
    place = int(len(content) * at) // 64 * 64
    content[place : place + len(bytes_there)] = bytes_there
    path.write_bytes(content)


def test_ids_that_are_no_nodes_are_seen_in_rows_that_are_read(tmp_path, monkeypatch):
    large_store(tmp_path / "g")
    monkeypatch.setattr(graph_module, "READ_WHOLE_BELOW_BYTES", 0)
    damage(tmp_path / "g", b"\xff" * 1024, 0.5)  # among the ids of about row 30,000
    graph = GraphStore.open(tmp_path / "g")
    with pytest.raises(CorruptStoreError, match="makes no sense in the row of node"):
        rows_of(graph.edges, np.arange(29_000, 31_500))
    assert rows_of(graph.edges, np.arange(100)).values.size > 10_000
    with pytest.raises(CorruptStoreError, match="bytes that were written"):
        rows_of(graph.edges, np.arange(0, 60_000, 7))  # so many that the block is read, and compared, as a whole


def test_offsets_beyond_the_file_are_seen(tmp_path, monkeypatch):
    large_store(tmp_path / "g")
    monkeypatch.setattr(graph_module, "READ_WHOLE_BELOW_BYTES", 0)
    damage(tmp_path / "g", b"\x7f" * 64, 0.005)  # among the offsets, which come first: of about row 19,500
    graph = GraphStore.open(tmp_path / "g")
    with pytest.raises(CorruptStoreError, match="makes no sense in the row of node"):
        SomeRows(graph.edges).degrees(np.arange(19_000, 20_000))


@pytest.mark.parametrize("about", [{"num_edges": 7}, {"num_rows": 4999}, {"num_nodes": 2**33}])
def test_a_file_with_other_numbers_of_rows_or_edges_is_refused(tmp_path, about):
    small = GraphStore.from_edge_index(random_edges(5000, 40_000), path=tmp_path / "g", num_nodes=5000)
    small.edges._stored[0] = replace(small.edges._stored[0], **about)
    with pytest.raises(CorruptStoreError, match="does not hold the edges into rows 0 to 4,999"):
        rows_of(small.edges, np.array([0]))


@pytest.mark.parametrize("keeps_duplicates", [False, True])
def test_rows_of_a_store_that_has_grown_have_the_edges_that_came_later(tmp_path, keeps_duplicates):
    """Rows of the first ingest, rows that lengthen its last block, and rows of blocks that came later."""
    num_nodes = [70_000, 90_000, 90_000, 140_000]
    grow_store(tmp_path / "g", num_nodes, parts_of(num_nodes, 6000), BuildOptions(keep_duplicates=keeps_duplicates))
    graph, random = GraphStore.open(tmp_path / "g"), np.random.default_rng(1)
    hubs = np.argsort(graph.edges.in_degrees())[-40:]
    for count in (0, 5, 3000):
        ids = np.unique(np.append(random.choice(140_000, count, replace=False), hubs[:count]))
        found, wanted = rows_of(graph.edges, ids), [graph.edges.in_neighbours(int(node)) for node in ids]
        assert np.diff(found.offsets).tolist() == [row.size for row in wanted]
        np.testing.assert_array_equal(found.values, np.concatenate([np.empty(0, np.uint32), *wanted]))
