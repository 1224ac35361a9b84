"""Small graphs, weights for them, and two oracles: dense float64 matrices, and one whole-graph pass of DGL."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from tests.resources import at
from tests.store.graphs import random_edges

KEEP_LOOPS = BuildOptions(self_loops="keep")
ADD_LOOPS = BuildOptions(self_loops="add")
BACKENDS = ("numba", "torch", "dgl")
MODES = [
    ("contiguous", "held", "auto"),
    ("contiguous", "held", 4),
    ("contiguous", "halo", 3),
    ("ldg", "auto", 4),
]
"""Partitioner, sources, partitions."""


def matrix(num_rows, num_columns, seed=0, density=1.0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_rows, num_columns)).astype(np.float32)
    x[random.random(x.shape) >= density] = 0
    return x


def layers_of(*widths, bias=True, seed=0):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return random.normal(size=shape).astype(np.float32) / np.sqrt(shape[-1]).astype(np.float32)

    return [(draw(b, a), draw(b) if bias else None) for a, b in pairwise(widths)]


def build_graph(path, num_nodes, edge_index, x, *, options=None, features="dense", dtype="float32"):
    source = array_source(edge_index, x=x, num_nodes=num_nodes)
    build_store(source, path, at(), options=options or BuildOptions(), features_as=features, feature_dtype=dtype)
    return GraphStore.open(path)


def random_graph(path, num_nodes=60, num_edges=300, num_features=10, seed=0, density=1.0, **settings):
    """Directed, with loops and repeats in what is given, hubs, and nodes that no edge touches."""
    edge_index = random_edges(max(num_nodes - 5, 1), num_edges, seed)
    return build_graph(path, num_nodes, edge_index, matrix(num_nodes, num_features, seed, density), **settings)


def clustered_graph(path):
    """Eight groups of 40 nodes, numbered through each other, with few edges between groups."""
    random = np.random.default_rng(0)
    inside = random.integers(0, 40, (2, 6000)) * 8 + random.integers(0, 8, 6000)
    between = random.integers(0, 320, (2, 60))
    edges = np.concatenate([inside, between], axis=1)
    return build_graph(path, 320, edges, matrix(320, 10), options=BuildOptions(symmetrise=True))


def adjacency(graph):
    """A with exactly one self loop a node, as a dense matrix; row = destination."""
    found = np.zeros((graph.num_nodes, graph.num_nodes))
    source, destination = graph.to_edge_index()
    np.add.at(found, (destination, source), 1.0)
    np.fill_diagonal(found, 1.0)
    return found


def propagation(graph, norm):
    found = adjacency(graph)
    if norm == "mean":
        return found / found.sum(axis=1, keepdims=True)
    if norm == "sym":
        return found / np.sqrt(found.sum(axis=1, keepdims=True)) / np.sqrt(found.sum(axis=0, keepdims=True))
    return found


def naive_logits(graph, x, layers, *, encoder="gcn", norm="sym", bias_place="inside"):
    p = propagation(graph, "mean" if encoder == "sage" else norm)
    rows = np.asarray(x, np.float64)
    if encoder == "sgc":
        for _ in layers:
            rows = p @ rows
        p = np.eye(graph.num_nodes)
    for number, (weight, bias) in enumerate(layers):
        constant = np.zeros(len(weight)) if bias is None else bias.astype(np.float64)
        product = rows @ weight.astype(np.float64).T
        rows = p @ (product + constant) if bias_place == "inside" else p @ product + constant
        rows = np.maximum(rows, 0.0) if number < len(layers) - 1 else rows
    return rows


def dgl_logits(graph, x, layers, *, encoder="gcn", norm="sym", bias_place="inside"):
    """One pass over the whole graph with DGL's own GraphConv."""
    import dgl
    import torch
    from dgl.nn import GraphConv

    edges = [torch.from_numpy(ids) for ids in graph.to_edge_index()]
    whole = dgl.add_self_loop(dgl.remove_self_loop(dgl.graph((edges[0], edges[1]), num_nodes=graph.num_nodes)))
    kind = {"sym": "both", "sum": "none", "mean": "right"}["mean" if encoder == "sage" else norm]
    rows = torch.from_numpy(np.array(x, np.float32))
    with torch.no_grad():
        if encoder == "sgc":
            for _ in layers:
                rows = GraphConv(rows.shape[1], rows.shape[1], norm=kind, weight=False, bias=False)(whole, rows)
        for number, (given_weight, given_bias) in enumerate(layers):
            weight = torch.from_numpy(given_weight).T
            bias = torch.zeros(weight.shape[1]) if given_bias is None else torch.from_numpy(given_bias)
            if encoder == "sgc":
                rows = rows @ weight + bias
            elif bias_place == "inside":
                layer = GraphConv(weight.shape[1], weight.shape[1], norm=kind, weight=False, bias=False)
                rows = layer(whole, rows @ weight + bias)
            else:
                layer = GraphConv(*weight.shape, norm=kind, weight=True, bias=True)
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
                rows = layer(whole, rows)
            rows = torch.relu(rows) if number < len(layers) - 1 else rows
    return rows.numpy()


def assert_close(found, wanted):
    """To 1e-5 of the largest value of each column: what cancels within a row cannot be better in float32."""
    scale = np.maximum(np.abs(wanted).max(axis=0), 1e-6)
    np.testing.assert_allclose(found / scale, wanted / scale, rtol=1e-5, atol=1e-5)
