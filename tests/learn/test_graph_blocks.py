"""Training a graph network in row blocks gives the gradient of training it whole, in less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.graph.propagate import one_hop_features
from ecgl_scale.learn import graph_blocks
from ecgl_scale.learn.graph_blocks import BlockedGraphSegment, plan_blocks, trains_in_blocks
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.loss import Targets, target_fields
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import Trainer
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB
from tests.resources import at
from tests.store.graphs import random_edges

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 300, 12, 5


def make_graph(path: Path, num_nodes: int, num_edges: int, num_features: int) -> GraphStore:
    x = np.random.default_rng(0).normal(size=(num_nodes, num_features)).astype(np.float32)
    return GraphStore.from_edge_index(
        random_edges(num_nodes, num_edges, seed=3), x=x, path=path, num_nodes=num_nodes, options=BuildOptions()
    )


def make_segments(graph: GraphStore, path: Path, columns: list[int], **fields: Any) -> list[GraphSegment]:
    """The same task trained whole, and in blocks."""
    rng = np.random.default_rng(1)
    local = np.flatnonzero(rng.random(graph.num_nodes) < 0.5)
    allowed = np.zeros(NUM_CLASSES, np.bool_)
    allowed[columns] = True
    targets = Targets(
        labels=rng.choice(columns, local.size),
        coefficients=rng.random(local.size).astype(np.float32),
        columns=allowed,
    )
    norm = fields.pop("norm", "sym")
    rows = RowCache.from_array(graph.require_features().rows_dense(np.arange(graph.num_nodes)))
    common = {
        "rows": rows,
        "propagation": GraphPropagation(graph, at(), norm),
        "local": local,
        **target_fields(targets),
    }
    sent = RowCache.from_array(one_hop_features(graph, np.arange(graph.num_nodes), at(), norm=norm, path=path))
    return [GraphSegment(**common, **fields), BlockedGraphSegment(sent=sent, **common, **fields)]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return make_graph(tmp_path_factory.mktemp("graph") / "store", NUM_NODES, 1500, NUM_FEATURES)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("norm", ["sym", "sum", "mean"])
@pytest.mark.parametrize("columns", [[1, 2], [0, 2, 4]])
def test_the_gradient_is_that_of_the_whole_graph(
    graph: GraphStore, tmp_path: Path, bias: bool, place: str, norm: str, columns: list[int]
) -> None:
    segments = make_segments(graph, tmp_path / "sent", columns, norm=norm, bias_place=place)
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [16], NUM_CLASSES, bias=bias, seed=0))
    found = []
    for segment in segments:
        loss = trainer.gradient([segment])
        found.append((loss, [parameter.grad.clone() for parameter in trainer.weights.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for whole, blocked in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(whole, blocked, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))


def test_blocks_of_any_size_give_the_same_gradient(graph: GraphStore, tmp_path: Path) -> None:
    _, segment = make_segments(graph, tmp_path / "sent", [0, 1, 2, 3, 4])
    assert isinstance(segment, BlockedGraphSegment)
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [16], NUM_CLASSES, seed=0))
    found = []
    for block_rows in (None, 16, 48):
        trainer.gradient([])
        segment.add_gradient(trainer.weights, block_rows=block_rows)
        found.append([parameter.grad.clone() for parameter in trainer.weights.parameters()])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.allclose(one, two, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


def test_outputs_are_the_same_with_and_without_a_gradient(graph: GraphStore, tmp_path: Path) -> None:
    whole, blocked = make_segments(graph, tmp_path / "sent", [1, 3])
    weights = SharedWeights.create(NUM_FEATURES, [16], NUM_CLASSES, seed=0)
    wanted = whole.logits(weights)
    with torch.no_grad():
        assert torch.allclose(blocked.logits(weights), wanted, atol=1e-5)
    assert torch.allclose(blocked.logits(weights), wanted, atol=1e-5)
    moved = replace(blocked, local=blocked.local[::-1].copy())
    with torch.no_grad():
        assert torch.allclose(moved.logits(weights), wanted.flip(0), atol=1e-5)


def test_small_graphs_and_other_networks_are_trained_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_blocks, "WHOLE_BELOW_BYTES", 4 * 100 * 16)
    plain: dict[str, Any] = {"encoder": "gcn", "dropout": 0.0, "device": "cpu", "is_sparse": False}
    assert trains_in_blocks(101, (8, 16, 3), **plain)
    assert not trains_in_blocks(100, (8, 16, 3), **plain)
    assert not trains_in_blocks(101, (8, 16, 16, 3), **plain)
    for other in ({"encoder": "sgc"}, {"dropout": 0.5}, {"device": "cuda"}, {"is_sparse": True}):
        assert not trains_in_blocks(101, (8, 16, 3), **{**plain, **other})


def test_memory_stays_within_the_plan(tmp_path: Path) -> None:
    num_nodes, hidden = 60_000, 256
    graph = make_graph(tmp_path / "store", num_nodes, 200_000, 8)
    _, segment = make_segments(graph, tmp_path / "sent", [0, 1, 2, 3, 4])
    trainer = Trainer(SharedWeights.create(8, [hidden], NUM_CLASSES, seed=0))
    trainer.gradient([segment])  # libraries take their own memory at the first use
    plan = plan_blocks(
        graph, (8, hidden, NUM_CLASSES), num_nodes=num_nodes, num_edges=graph.num_edges, room_bytes=1 << 40
    )
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        trainer.gradient([segment])
    assert sampler.peak_bytes - before < plan.host_bytes
    assert plan.host_bytes < 4 * num_nodes * hidden + 64 * MIB  # less than the hidden layer whole, once
