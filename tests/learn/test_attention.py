"""The norm of all attentions and its gradient, against a dense softmax by autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.learn import attention
from ecgl_scale.learn.attention import attention_gradient
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from tests.resources import at
from tests.store.graphs import random_edges

NODES, FEATURES, WIDTH = 120, 6, 4


@pytest.fixture(scope="module", params=["drop", "keep", "add"])
def graph(tmp_path_factory, request):
    """Hubs, loops and nodes alone."""
    edges = random_edges(NODES - 10, 700, seed=4)
    path = tmp_path_factory.mktemp("graph") / "store"
    return GraphStore.from_edge_index(edges, path=path, num_nodes=NODES, options=BuildOptions(self_loops=request.param))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(2).normal(size=(NODES, FEATURES)).astype(np.float32)


@pytest.fixture
def layer():
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in ((WIDTH, FEATURES), (WIDTH,)))


def naive(graph, x, layer, *, inside, messages):
    source, target = graph.to_edge_index()
    adjacency = torch.zeros(NODES, NODES)
    adjacency[target, source] = 1
    adjacency.fill_diagonal_(1)
    weight, bias = layer
    h = torch.from_numpy(x) @ weight.t()
    if inside and bias is not None:
        h = h + bias
    if messages:
        h = adjacency / adjacency.sum(1, keepdim=True) @ h
        if not inside and bias is not None:
            h = h + bias
    score = torch.nn.functional.leaky_relu(torch.tanh(h) @ h.t(), 0.2)
    norm = torch.softmax(score.masked_fill(adjacency == 0, -torch.inf), 1).norm()
    wanted = [tensor for tensor in layer if tensor is not None]
    gradients = torch.autograd.grad(norm, wanted, allow_unused=True)
    return float(norm.detach()), [
        torch.zeros_like(t) if g is None else g for t, g in zip(wanted, gradients, strict=True)
    ]


@pytest.mark.parametrize("block_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_norm_and_gradient_are_those_of_a_dense_softmax(graph, x, layer, inside, messages, block_bytes, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_BYTES", block_bytes)
    norm, by_weight, by_bias = attention_gradient(
        graph,
        RowCache.from_array(x),
        layer,
        is_bias_inside=inside,
        propagation=GraphPropagation(graph, at(), "mean") if messages else None,
    )
    wanted, gradients = naive(graph, x, layer, inside=inside, messages=messages)
    assert norm == pytest.approx(wanted, rel=1e-5)
    for found, gradient in zip((by_weight, by_bias), gradients, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)


def test_a_layer_without_a_bias(graph, x, layer):
    weight, _ = layer
    norm, by_weight, by_bias = attention_gradient(graph, RowCache.from_array(x), (weight, None))
    wanted, (gradient,) = naive(graph, x, (weight, None), inside=True, messages=False)
    assert by_bias is None
    assert norm == pytest.approx(wanted, rel=1e-5)
    torch.testing.assert_close(by_weight, gradient, rtol=1e-4, atol=1e-5)


def test_large_scores_stay_finite(graph, x, layer):
    weight, bias = layer
    with torch.no_grad():
        weight.mul_(1e4)
    norm, by_weight, _ = attention_gradient(graph, RowCache.from_array(x), (weight, bias))
    assert np.isfinite(norm)
    assert torch.isfinite(by_weight).all()
