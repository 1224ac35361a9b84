"""Partitions: every row once, balanced, neighbours together where that was asked for; METIS may die, we may not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.graph import metis, partition
from ecgl_scale.graph.adjacency import Adjacency
from ecgl_scale.graph.metis import Metis
from ecgl_scale.graph.partition import cut_contiguous, cut_greedily, cut_partitions, measure_halos
from tests.infer.networks import build_graph, clustered_graph, matrix, random_graph

ROOMY = MemoryBudget(1 << 40, "--memory")


def cut(partitioner, graph, count, scratch=Path(), kept_in=None, budget=ROOMY):
    metis = Metis(graph, scratch, budget, kept_in)
    return cut_partitions(partitioner, Adjacency(graph), count, metis=metis)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g", 400, 4000)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return clustered_graph(tmp_path_factory.mktemp("clustered") / "g")


@pytest.mark.parametrize("partitioner", ["contiguous", "ldg"])
@pytest.mark.parametrize("count", [1, 2, 7, 400, 1000])
def test_every_row_is_in_one_partition(graph, partitioner, count):
    found = cut(partitioner, graph, count)
    rows = [np.arange(400)[found.where(block)] for block in found.blocks]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(400))
    assert [block.index for block in found.blocks] == [*range(len(rows))]
    assert found.cuts == [0, *np.cumsum([part.size for part in rows])]
    assert all(block.num_rows == part.size > 0 for block, part in zip(found.blocks, rows, strict=True))
    assert all((np.diff(part) > 0).all() for part in rows)
    for block, part in zip(found.blocks, rows, strict=True):
        np.testing.assert_array_equal(found.ids(block), part)
    assert len(rows) <= min(count, 400)


def test_contiguous_partitions_have_about_as_much_work_each(graph):
    edges = Adjacency(graph)
    found = cut_contiguous(edges, 5, row_weight=2.0)
    work = [
        edges.edges_before(block.stop) - edges.edges_before(block.start) + 2.0 * block.num_rows
        for block in found.blocks
    ]
    heaviest_row = np.diff([edges.edges_before(row) for row in range(401)]).max() + 2.0
    assert max(work) - min(work) <= 2 * heaviest_row


def test_large_contiguous_partitions_are_cut_at_chunks(graph, monkeypatch):
    monkeypatch.setattr(partition, "CHUNK_ROWS", 16)
    assert all(block.start % 16 == 0 for block in cut_contiguous(Adjacency(graph), 5).blocks)


def test_greedy_partitions_are_balanced_and_reach_fewer_nodes_than_contiguous_ones(clustered):
    edges = Adjacency(clustered)
    greedy, contiguous = cut_greedily(edges, 8), cut_contiguous(edges, 8)
    assert max(block.num_rows for block in greedy.blocks) <= np.ceil(320 / 8 * partition.LDG_SLACK)
    reached = [sum(size.num_sources for size in measure_halos(edges, cut)) for cut in (greedy, contiguous)]
    assert reached[0] < 0.6 * reached[1]


def test_greedy_partitions_are_the_same_each_time(clustered):
    one, two = (cut_greedily(Adjacency(clustered), 8) for _ in range(2))
    assert one.blocks == two.blocks
    np.testing.assert_array_equal(one.order, two.order)


def ended(code, stderr=""):
    return lambda command, **_: subprocess.CompletedProcess(command, code, "", stderr)


def times_out(command, *, timeout, **_):
    raise subprocess.TimeoutExpired(command, timeout)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (ended(-11), "METIS ended with -11"),
        (ended(1, "no\nmemory"), "ended with 1: memory"),
        (times_out, "not done after"),
    ],
)
def test_a_dying_metis_is_an_error_that_says_what_to_do(clustered, tmp_path, monkeypatch, run, message):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    monkeypatch.setattr(metis.subprocess, "run", run)
    with pytest.raises(UsageError, match=message) as failed:
        cut("metis", clustered, 4, tmp_path)
    assert "ldg" in failed.value.fix


def test_without_dgl_metis_is_refused(clustered, tmp_path, monkeypatch):
    monkeypatch.setattr(metis, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed"):
        cut("metis", clustered, 4, tmp_path)


def test_metis_is_refused_where_its_memory_would_not_fit(clustered, tmp_path):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    with pytest.raises(DoesNotFitError, match="METIS"):
        cut("metis", clustered, 4, tmp_path, budget=MemoryBudget(1 << 16, "x"))


@pytest.fixture
def calls(monkeypatch):
    """Parts that METIS was asked for, in place of which nodes are dealt out in turn."""
    found = []

    def deal(asked, count):
        found.append(count)
        return np.arange(asked.graph.num_nodes, dtype=np.int32) % count

    monkeypatch.setattr(metis, "run_metis", deal)
    return found


def test_a_kept_cut_is_not_made_again(clustered, graph, tmp_path, calls):
    first = cut("metis", clustered, 8, kept_in=tmp_path).order
    np.testing.assert_array_equal(cut("metis", clustered, 8, kept_in=tmp_path).order, first)
    assert calls == [8]
    [kept] = tmp_path.glob("*-8.metis.npy")
    np.testing.assert_array_equal(np.load(kept), np.arange(320) % 8)
    cut("metis", clustered, 4, kept_in=tmp_path)
    assert calls == [8, 4]
    other = build_graph(tmp_path / "other", 320, np.array([[0, 1], [1, 2]]), matrix(320, 10))
    cut("metis", other, 8, kept_in=tmp_path)
    assert calls == [8, 4, 8]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "damaged",
    [
        np.arange(319, dtype=np.int32) % 8,
        np.full(320, 8, np.int32),
        np.full(320, -1, np.int32),
        np.zeros(320, np.float32),
        b"",
        b"\x93NUMPY",
        b"no array at all",
    ],
)
def test_a_kept_cut_that_is_damaged_is_made_again(clustered, tmp_path, calls, damaged):
    first = cut("metis", clustered, 8, kept_in=tmp_path).order
    [kept] = tmp_path.glob("*.metis.npy")
    if isinstance(damaged, bytes):
        kept.write_bytes(damaged)
    else:
        np.save(kept, damaged)
    np.testing.assert_array_equal(cut("metis", clustered, 8, kept_in=tmp_path).order, first)
    assert calls == [8, 8]
    np.testing.assert_array_equal(np.load(kept), np.arange(320) % 8)


def test_without_a_directory_no_cut_is_kept(clustered, tmp_path, calls):
    for _ in range(2):
        cut("metis", clustered, 8, tmp_path)
    assert calls == [8, 8]
    assert list(tmp_path.iterdir()) == []
