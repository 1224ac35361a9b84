"""Small stored graphs and P as a dense matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.graph.convolution import Norm
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from tests.store.graphs import random_edges

NUM_NODES = 300
NORMS: list[Norm] = ["sym", "sum", "mean"]
GRAPHS = {
    "directed": BuildOptions(self_loops="drop"),
    "symmetric": BuildOptions(symmetrise=True),
    "with loops": BuildOptions(self_loops="add"),
    "with some loops": BuildOptions(self_loops="keep"),
    "repeated edges": BuildOptions(keep_duplicates=True, self_loops="keep"),
}


def stored_graph(path: Path, x: Any, kind: str) -> GraphStore:
    """A random graph; its last 20 nodes have no edge at all."""
    edges = random_edges(NUM_NODES - 20, 1500, seed=3)
    return GraphStore.from_edge_index(edges, x=x, path=path, num_nodes=NUM_NODES, options=GRAPHS[kind])


def dense_matrix(graph: GraphStore, norm: Norm) -> NDArray[np.float64]:
    """P as the formula says, in float64."""
    source, target = graph.to_edge_index()
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(a, (target, source), 1.0)
    np.fill_diagonal(a, 1.0)
    in_degrees, out_degrees = a.sum(1), a.sum(0)
    if norm == "sum":
        return a
    if norm == "mean":
        return np.asarray(a / in_degrees[:, None])
    return np.asarray(a / np.sqrt(in_degrees)[:, None] / np.sqrt(out_degrees)[None])
