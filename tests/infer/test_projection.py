"""Sparse rows that are multiplied first and passed along after: the formula's values, in any memory, by any workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine import journal
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.graph import propagate
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.infer import projection
from ecgl_scale.infer.hop_rows import draw_map
from ecgl_scale.infer.input_rows import make_input_rows, open_stacked
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.infer.projected_rows import ProjectedRows
from ecgl_scale.infer.projection import Projection, lay_out
from ecgl_scale.infer.random_features import RandomFeatures
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.units import MIB
from tests.graph.matrices import GRAPHS, NORMS, NUM_NODES, dense_matrix, stored_graph
from tests.resources import at
from tests.store.graphs import random_edges

WORDS = 43
WIDTH = 530


def draw_words(num_nodes: int = NUM_NODES, words: int = WORDS, share: float = 0.06) -> Any:
    rng = np.random.default_rng(2)
    x = np.where(rng.random((num_nodes, words)) < share, rng.normal(size=(num_nodes, words)), 0)
    x[::11] = 0  # among them nodes without an edge
    return scipy.sparse.csr_matrix(x.astype(np.float32))


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> GraphStore:
    return stored_graph(tmp_path_factory.mktemp("words") / "store", draw_words(), request.param)


@pytest.fixture(scope="module")
def symmetric(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return stored_graph(tmp_path_factory.mktemp("words") / "store", draw_words(), "symmetric")


def made(hops: int = 2, width: int = WIDTH) -> ModelInput:
    return ModelInput(hops, is_stacked=True, width=width, seed=4, multiplies_first=True)


def rows_of(
    graph: GraphStore, made: ModelInput, directory: Path, norm: Norm = "sym", resources: Any = None, **more: Any
) -> Any:
    mapping = draw_map(made, graph.num_features, at(threads=2))
    return make_input_rows(graph, made, mapping, resources or at(threads=2), norm=norm, directory=directory, **more)


def naive(graph: GraphStore, hops: int, width: int, norm: Norm, x: Any) -> Any:
    p, now, parts = dense_matrix(graph, norm), np.asarray(x, np.float64), []
    for _ in range(hops + 1):
        length = np.linalg.norm(now, axis=1, keepdims=True)
        parts.append(now / np.where(length == 0, 1, length))
        now = p @ now
    mapping = RandomFeatures(WORDS * (hops + 1), width, 4, threads=1)
    r = np.hstack([mapping.draw(start).T for start in mapping.starts])
    return np.maximum(np.hstack(parts) @ r, 0)


@pytest.mark.parametrize("norm", NORMS)
def test_rows_are_those_of_the_formula(graph: GraphStore, norm: Norm, tmp_path: Path) -> None:
    found = rows_of(graph, made(), tmp_path, norm)
    assert isinstance(found, ProjectedRows)
    assert (len(found), found.width) == (NUM_NODES, WIDTH)
    wanted = naive(graph, 2, WIDTH, norm, draw_words().todense())
    np.testing.assert_allclose(found[np.arange(NUM_NODES)], wanted, atol=2e-5)
    some = np.array([299, 3, 3, 17])
    np.testing.assert_array_equal(found[some], found[np.arange(NUM_NODES)][some])


@pytest.mark.parametrize(("hops", "width"), [(0, 7), (1, 512), (3, 7)])
@pytest.mark.parametrize("scaling", [None, "row_sum", "row_l2", "standard"])
def test_hops_widths_and_scalings(symmetric: GraphStore, tmp_path: Path, hops: int, width: int, scaling: Any) -> None:
    """Those that take a mean off leave no zeros, and go the other way."""
    moments = (np.full(WORDS, 0.1), np.full(WORDS, 2.0)) if scaling == "standard" else ()
    scaled = Scaling(scaling or "none", *moments)
    found = rows_of(symmetric, made(hops, width), tmp_path, scaling=scaled)
    assert isinstance(found, ProjectedRows) == (scaling != "standard")
    x = scaled.apply(np.asarray(draw_words().todense()))
    wanted = naive(symmetric, hops, width, "sym", x)
    np.testing.assert_allclose(found[np.arange(NUM_NODES)], wanted, atol=2e-5)


def bits_of(rows: Any) -> bytes:
    return bytes(rows[np.arange(len(rows))].tobytes())


def test_memory_threads_blocks_and_workers_change_no_bit(
    symmetric: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = bits_of(rows_of(symmetric, made(), tmp_path / "plain"))
    assert bits_of(rows_of(symmetric, made(), tmp_path / "one", resources=at(threads=1))) == wanted
    monkeypatch.setattr(propagate, "BLOCK_BYTES", 4 * 512 * 100)
    script = ScriptedExecutor(tmp_path / "counts", failures={("graph.propagate", 1): [OSError(5, "disk")]})
    there = at(threads=2, executor=script, work=tmp_path / "work")
    found = rows_of(symmetric, made(), tmp_path / "elsewhere", resources=there)
    assert bits_of(found) == wanted
    assert bits_of(open_stacked(found.describe(), there)) == wanted
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    smallest = lay_out(NUM_NODES, WORDS, 2, room_bytes=0)
    assert smallest.columns == 4
    assert bits_of(rows_of(symmetric, made(), tmp_path / "little", resources=at(memory=smallest.peak_bytes))) == wanted
    with pytest.raises(DoesNotFitError, match="4 columns on their way"):
        rows_of(symmetric, made(), tmp_path / "none", resources=at(memory=smallest.peak_bytes - 1))
    own = np.flatnonzero(np.arange(NUM_NODES) % 3 == 1)
    part = rows_of(symmetric, made(), tmp_path / "part", part=(symmetric, own))
    assert bits_of(part) == rows_of(symmetric, made(), tmp_path / "plain")[own].tobytes()


def test_both_ways_agree_to_rounding(graph: GraphStore, tmp_path: Path) -> None:
    first = rows_of(graph, made(), tmp_path / "first")
    last = rows_of(graph, ModelInput(2, is_stacked=True, width=WIDTH, seed=4), tmp_path / "last")
    assert not isinstance(last, ProjectedRows)
    everything = np.arange(NUM_NODES)
    np.testing.assert_allclose(first[everything], last[everything], atol=1e-5)


def test_killed_it_goes_on_with_what_is_finished(
    symmetric: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = bits_of(rows_of(symmetric, made(), tmp_path / "whole"))
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    little = at(threads=1, memory=lay_out(NUM_NODES, WORDS, 2, room_bytes=0).peak_bytes)
    multiplied, added = Projection._multiplied, projection.add_squares
    calls = {"squares": 0, "products": 0}

    def die_adding(rows: Any, total: Any) -> None:
        calls["squares"] += 1
        if calls["squares"] == 16:
            raise KeyboardInterrupt
        added(rows, total)

    def die_multiplying(self: Projection, weights: Any) -> Any:
        calls["products"] += 1
        if weights.shape[1] < 20 and calls["products"] > 3:
            raise KeyboardInterrupt
        return multiplied(self, weights)

    killed = tmp_path / "killed"
    monkeypatch.setattr(projection, "add_squares", die_adding)
    with pytest.raises(KeyboardInterrupt):
        rows_of(symmetric, made(), killed, resources=little)
    monkeypatch.setattr(Projection, "_multiplied", die_multiplying)
    before = calls["squares"]
    with pytest.raises(KeyboardInterrupt):
        rows_of(symmetric, made(), killed)  # in its second file
    assert 0 < calls["squares"] - before <= 3, "squares were added again"
    monkeypatch.setattr(Projection, "_multiplied", multiplied)
    times = (killed / "projected-0.rows").stat().st_mtime_ns
    assert bits_of(rows_of(symmetric, made(), killed)) == wanted
    assert (killed / "projected-0.rows").stat().st_mtime_ns == times
    assert not (killed / "lengths").exists()
    damaged = np.memmap(killed / "projected-0.rows", np.float32, "r+")
    damaged[7] += 1
    damaged.flush()
    assert bits_of(rows_of(symmetric, made(), killed)) == wanted


def test_memory_stays_within_the_plan_and_the_plan_within_the_budget(tmp_path: Path) -> None:
    room_mib = 75
    edges = random_edges(30_000, 100_000, seed=3)
    words = scipy.sparse.random(30_000, 900, density=0.01, format="csr", dtype=np.float32, random_state=1)
    options = BuildOptions(symmetrise=True)
    graph = GraphStore.from_edge_index(edges, x=words, path=tmp_path / "g", num_nodes=30_000, options=options)
    rows_of(graph, made(1, 16), tmp_path / "warm")  # loads and compiles
    held = own_memory_bytes()
    plan = made(1, 16).plan(graph, norm="sym", room_bytes=room_mib * MIB, threads=2)
    with PeakSampler(0.001) as sampler:
        rows_of(graph, made(1, 16), tmp_path / "rows", resources=at(memory=held + room_mib * MIB, threads=2))
    assert plan.host_bytes <= room_mib * MIB
    assert sampler.peak_bytes - held <= plan.host_bytes
    assert plan.written_bytes >= (tmp_path / "rows" / "projected-0.rows").stat().st_size


def test_the_way_follows_from_the_number_of_words(symmetric: GraphStore, tmp_path: Path) -> None:
    stacked = ModelInput(2, is_stacked=True, width=512)
    wide = stored_graph(tmp_path / "wide", draw_words(words=2000, share=0.01), "symmetric")
    assert stacked.on(wide, keeps_zeros=True) == ModelInput(2, is_stacked=True, width=512, multiplies_first=True)
    assert stacked.on(wide, keeps_zeros=False) == stacked
    assert stacked.on(symmetric, keeps_zeros=True) == stacked, "of few words the dense product is faster"
    for other in (ModelInput(2, is_stacked=True), ModelInput(0, is_stacked=True, width=512), ModelInput(2)):
        assert other.on(wide, keeps_zeros=True) == other
    dense = stored_graph(tmp_path / "dense", np.ones((NUM_NODES, WORDS), np.float32), "symmetric")
    assert stacked.on(dense, keeps_zeros=True) == stacked


@pytest.mark.parametrize("words", [40, 700, 1200, 3000])
def test_a_store_that_grows_goes_the_way_it_went(tmp_path: Path, words: int) -> None:
    """Else rows that a model has learned before could not be subtracted to the last bit."""
    stacked = ModelInput(2, is_stacked=True, width=512)
    ways = set()
    for num_edges, share in ((10, 0.01), (300, 0.03), (4000, 0.1)):
        x = draw_words(NUM_NODES, words, share)
        path = tmp_path / f"{num_edges}"
        graph = GraphStore.from_edge_index(random_edges(NUM_NODES, num_edges, seed=1), x=x, path=path)
        assert graph.features.is_sparse
        ways.add(stacked.on(graph, keeps_zeros=True).multiplies_first)
    assert ways == {words > 1000}
