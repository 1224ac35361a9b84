"""Messages of graphs that stay on disk: the formulas' values, in any memory, and the neighbours of a few nodes."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import DoesNotFitError, EcglError, UsageError
from ecgl_scale.graph import propagate
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.graph.propagate import StreamedPropagation, hop_features, one_hop_features
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB
from tests.graph.matrices import GRAPHS, NORMS, NUM_NODES, dense_matrix, stored_graph
from tests.resources import at
from tests.store.graphs import random_edges

NUM_FEATURES = 12


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NUM_NODES, NUM_FEATURES)).astype(np.float32)


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, x: np.ndarray) -> GraphStore:
    return stored_graph(tmp_path_factory.mktemp("graph") / "store", x, request.param)


@pytest.mark.parametrize("norm", NORMS)
def test_blocks_are_the_rows_of_p_x(
    graph: GraphStore, norm: Norm, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = (sent for _, sent in StreamedPropagation(graph, at(threads=1), norm).blocks(x))
    assert np.allclose(whole, dense_matrix(graph, norm) @ x, atol=1e-5)
    monkeypatch.setattr(propagate, "BLOCK_BYTES", 4 * NUM_FEATURES * 37)
    blocks = list(StreamedPropagation(graph, at(threads=2), norm).blocks(x))
    assert len(blocks) > 5
    assert [first for first, _ in blocks] == np.cumsum([0, *(len(sent) for _, sent in blocks[:-1])]).tolist()
    assert np.array_equal(np.concatenate([sent for _, sent in blocks]), whole)


def test_one_number_a_node_spreads_hop_by_hop(graph: GraphStore) -> None:
    values = np.random.default_rng(1).random(NUM_NODES)
    p = dense_matrix(graph, "mean")
    found = StreamedPropagation(graph, at(), "mean").spread(values, 3)
    assert np.allclose(found, p @ p @ p @ values, atol=1e-6)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_propagated_rows_have_the_same_bits_in_any_memory(
    tmp_path: Path, x: np.ndarray, is_sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = scipy.sparse.csr_matrix(np.where(x > 0.8, x, 0)) if is_sparse else x
    edges = random_edges(NUM_NODES, 1500, seed=3)
    graph = GraphStore.from_edge_index(edges, x=held, path=tmp_path / "g", options=BuildOptions())
    local = np.flatnonzero(np.arange(NUM_NODES) % 3 == 1)
    wanted = one_hop_features(graph, local, at(), path=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    dense = np.asarray(held.todense()) if is_sparse else x
    assert np.allclose(wanted, (dense_matrix(graph, "sym") @ dense)[local], atol=1e-5)
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    smallest = 12 * NUM_NODES + 48 * MIB + 16 * NUM_NODES
    narrow = one_hop_features(graph, local, at(memory=smallest), path=tmp_path / "deep" / "rows")
    assert (tmp_path / "deep" / "rows").stat().st_size == 4 * local.size * NUM_FEATURES
    assert np.array_equal(narrow, wanted)
    with pytest.raises(DoesNotFitError):
        one_hop_features(graph, local, at(memory=smallest - 1), path=tmp_path / "b")


@pytest.mark.parametrize("norm", NORMS)
def test_rows_may_pass_several_edges_and_have_the_same_bits_in_any_memory(
    tmp_path: Path, graph: GraphStore, norm: Norm, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, p = np.arange(4, NUM_NODES, 3), dense_matrix(graph, norm)
    wanted = hop_features(graph, local, at(), hops=3, norm=norm, path=tmp_path / "unused")
    assert np.allclose(wanted, (p @ p @ p @ x)[local], rtol=1e-4, atol=1e-4)
    once = hop_features(graph, local, at(), hops=1, norm=norm, path=tmp_path / "unused")
    assert once.tobytes() == one_hop_features(graph, local, at(), norm=norm, path=tmp_path / "unused").tobytes()
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    smallest = (12 + 8 * 4) * NUM_NODES + 48 * MIB
    given = {"hops": 3, "norm": norm, "path": tmp_path / "rows", "besides_bytes": MIB}
    narrow = hop_features(graph, local, at(memory=smallest + MIB), **given)
    assert isinstance(narrow, np.memmap)
    assert np.array_equal(narrow, wanted)
    with pytest.raises(DoesNotFitError):
        hop_features(graph, local, at(memory=smallest + MIB - 1), **given)


def test_the_plan_counts_what_is_held(tmp_path: Path, graph: GraphStore) -> None:
    with pytest.raises(DoesNotFitError, match="pass features along the edges"):
        one_hop_features(graph, np.arange(4), at(memory=own_memory_bytes()), path=tmp_path / "x")


def test_senseless_input_is_refused(graph: GraphStore) -> None:
    with pytest.raises(UsageError, match="no norm 'max'"):
        StreamedPropagation(graph, at(), "max")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="shape"):
        list(StreamedPropagation(graph, at()).blocks(np.ones((3, 3), np.float32)))


def test_workers_that_share_no_memory_send_the_same_bits(
    graph: GraphStore, x: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagate, "BLOCK_BYTES", 4 * NUM_FEATURES * 37)
    lost, late = OSError(errno.EIO, "gone"), OSError(errno.ESTALE, "late")
    script = ScriptedExecutor(
        tmp_path / "counts",
        failures={("graph.propagate", 1): [lost, None]},
        after={("graph.propagate", 2): late},
    )
    there = at(threads=2, executor=script, work=tmp_path)
    for norm in NORMS:
        wanted = np.concatenate([sent for _, sent in StreamedPropagation(graph, at(threads=2), norm).blocks(x)])
        found = np.concatenate([sent for _, sent in StreamedPropagation(graph, there, norm).blocks(x)])
        assert found.tobytes() == wanted.tobytes()
    assert script.times_run("graph.propagate", 1) > len(NORMS)
    values, local = np.random.default_rng(1).random(NUM_NODES), np.arange(5, 90)
    wanted, found = (StreamedPropagation(graph, where, "mean").spread(values, 2) for where in (at(), there))
    assert found.tobytes() == wanted.tobytes()
    wanted, found = (one_hop_features(graph, local, where, path=tmp_path / "rows") for where in (at(), there))
    assert found.tobytes() == wanted.tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["counts"]


def test_workers_that_share_no_memory_need_a_directory(graph: GraphStore, x: np.ndarray, tmp_path: Path) -> None:
    there = at(executor=ScriptedExecutor(tmp_path / "counts"))
    with pytest.raises(EcglError, match="share no directory"):
        list(StreamedPropagation(graph, there).blocks(x))
