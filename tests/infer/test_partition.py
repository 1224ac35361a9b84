"""Partitions: every row once, balanced, neighbours together where that was asked for; METIS may die, we may not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.graph.adjacency import Adjacency, Scales
from ecgl_scale.infer import partition
from ecgl_scale.infer.block import Halos
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.partition import cut_contiguous, cut_greedily, cut_partitions, measure_halos
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.store.edges.plan import BuildOptions
from tests.infer.networks import (
    assert_close,
    build_graph,
    layers_of,
    matrix,
    naive_logits,
    random_graph,
)
from tests.resources import at

ROOMY = MemoryBudget(1 << 40, "--memory")


def cut(partitioner, graph, count, scratch=Path()):
    edges = Adjacency(graph)
    return cut_partitions(partitioner, edges, count, store=graph.path, scratch=scratch, budget=ROOMY)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g", 400, 4000)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """Eight groups of 40 nodes, numbered through each other, with few edges between groups."""
    random = np.random.default_rng(0)
    inside = random.integers(0, 40, (2, 6000)) * 8 + random.integers(0, 8, 6000)
    between = random.integers(0, 320, (2, 60))
    edges = np.concatenate([inside, between], axis=1)
    path = tmp_path_factory.mktemp("clustered") / "g"
    return build_graph(path, 320, edges, matrix(320, 10), options=BuildOptions(symmetrise=True))


@pytest.mark.parametrize("partitioner", ["contiguous", "ldg"])
@pytest.mark.parametrize("count", [1, 2, 7, 400, 1000])
def test_every_row_is_in_one_partition(graph, partitioner, count):
    found = cut(partitioner, graph, count)
    rows = [np.arange(400)[one.where] for one in found]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(400))
    assert [one.index for one in found] == [*range(len(found))]
    assert all(one.num_rows == part.size > 0 for one, part in zip(found, rows, strict=True))
    assert all((np.diff(part) > 0).all() for part in rows)
    assert len(found) <= min(count, 400)


def test_contiguous_partitions_have_about_as_much_work_each(graph):
    edges = Adjacency(graph)
    found = cut_contiguous(edges, 5, row_weight=2.0)
    work = [edges.edges_before(one.stop) - edges.edges_before(one.first) + 2.0 * one.num_rows for one in found]
    heaviest_row = np.diff([edges.edges_before(row) for row in range(401)]).max() + 2.0
    assert max(work) - min(work) <= 2 * heaviest_row


def test_large_contiguous_partitions_are_cut_at_chunks(graph, monkeypatch):
    monkeypatch.setattr(partition, "CHUNK_ROWS", 16)
    assert all(one.first % 16 == 0 for one in cut_contiguous(Adjacency(graph), 5))


def test_greedy_partitions_are_balanced_and_reach_fewer_nodes_than_contiguous_ones(clustered):
    edges = Adjacency(clustered)
    greedy, contiguous = cut_greedily(edges, 8), cut_contiguous(edges, 8)
    assert max(one.num_rows for one in greedy) <= np.ceil(320 / 8 * partition.LDG_SLACK)
    reached = [sum(size.num_sources for size in measure_halos(edges, cut)) for cut in (greedy, contiguous)]
    assert reached[0] < 0.6 * reached[1]


def test_greedy_partitions_are_the_same_each_time(clustered):
    one, two = (cut_greedily(Adjacency(clustered), 8) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)


def test_halos_are_measured_as_they_are_gathered(graph):
    edges = Adjacency(graph)
    halos = Halos(edges, Scales(None, None))
    for found in (cut_contiguous(edges, 5), cut_greedily(edges, 5)):
        for size, one in zip(measure_halos(edges, found), found, strict=True):
            asked = []
            block = halos.block(one, lambda ids, asked=asked: asked.append(ids) or np.zeros((ids.size, 4), np.float32))
            assert (size.num_rows, size.num_sources) == (one.num_rows, asked[0].size)
            rows = block.cut(0, one.num_rows)
            assert size.num_edges == rows.num_edges
            np.testing.assert_array_equal(asked[0][: one.num_rows], np.arange(400)[one.where])
            np.testing.assert_array_equal(
                np.sort(asked[0][rows.indices]),
                np.sort(np.concatenate([graph.edges.in_neighbours(i) for i in asked[0][: one.num_rows]])),
            )


def test_metis_partitions_give_the_same_logits(clustered, tmp_path):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    layers = layers_of(10, 16, 5)
    settings = InferSettings(backend="numba", partitioner="metis", partitions=8)
    found = infer_logits(clustered, layers, at(), settings=settings, work_directory=tmp_path / "w")
    assert_close(found.logits, naive_logits(clustered, matrix(320, 10), layers))
    assert found.partitions == 8
    assert not list((tmp_path / "w").iterdir())


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
    monkeypatch.setattr(partition.subprocess, "run", run)
    with pytest.raises(UsageError, match=message) as failed:
        cut("metis", clustered, 4, tmp_path)
    assert "ldg" in failed.value.fix


def test_without_dgl_metis_is_refused(clustered, tmp_path, monkeypatch):
    monkeypatch.setattr(partition, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed"):
        cut("metis", clustered, 4, tmp_path)


def test_metis_is_refused_where_its_memory_would_not_fit(clustered, tmp_path):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    with pytest.raises(DoesNotFitError, match="METIS"):
        cut_partitions(
            "metis", Adjacency(clustered), 4, store=clustered.path, scratch=tmp_path, budget=MemoryBudget(1 << 16, "x")
        )


@pytest.fixture
def calls(monkeypatch):
    """Parts that METIS was asked for, in place of which nodes are dealt out in turn."""
    found = []

    def deal(store, edges, count, scratch, budget):
        found.append(count)
        return np.arange(edges.num_nodes, dtype=np.int32) % count

    monkeypatch.setattr(partition, "_run_metis", deal)
    return found


def infer_by_metis(graph, count, directory):
    settings = InferSettings(backend="numba", partitioner="metis", partitions=count)
    work, layers = directory / "work", layers_of(10, 16, 5)
    return infer_logits(graph, layers, at(), settings=settings, work_directory=work, cuts_directory=directory).logits


def test_a_kept_cut_is_not_made_again(clustered, graph, tmp_path, calls):
    first = infer_by_metis(clustered, 8, tmp_path)
    np.testing.assert_array_equal(infer_by_metis(clustered, 8, tmp_path), first)
    assert calls == [8]
    [kept] = tmp_path.glob("*-8.metis.npy")
    np.testing.assert_array_equal(np.load(kept), np.arange(320) % 8)
    infer_by_metis(clustered, 4, tmp_path)
    assert calls == [8, 4]
    other = build_graph(tmp_path / "other", 320, np.array([[0, 1], [1, 2]]), matrix(320, 10))
    infer_by_metis(other, 8, tmp_path)
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
    first = infer_by_metis(clustered, 8, tmp_path)
    [kept] = tmp_path.glob("*.metis.npy")
    if isinstance(damaged, bytes):
        kept.write_bytes(damaged)
    else:
        np.save(kept, damaged)
    np.testing.assert_array_equal(infer_by_metis(clustered, 8, tmp_path), first)
    assert calls == [8, 8]
    np.testing.assert_array_equal(np.load(kept), np.arange(320) % 8)


def test_without_a_directory_no_cut_is_kept(clustered, tmp_path, calls):
    settings = InferSettings(backend="numba", partitioner="metis", partitions=8)
    for _ in range(2):
        infer_logits(clustered, layers_of(10, 16, 5), at(), settings=settings, work_directory=tmp_path / "w")
    assert calls == [8, 8]
    assert list(tmp_path.rglob("*.npy")) == []
