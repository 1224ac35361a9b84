"""The same graph twice: grown in several generations, and ingested at once; what readers must not tell apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore

ACROSS_RANGES = (60_000, 60_000, 65_536, 65_600, 131_072, 140_001)
"""Generations of only edges, up to a multiple of 2**16, just past it, a whole range, and past another."""
SMALL = (40, 41, 41, 97, 150)
NUM_CLASSES = 5


@dataclass(frozen=True)
class Both:
    """A store that has grown and one of a single ingest, with the same nodes and edges."""

    grown: GraphStore
    whole: GraphStore


def make_both(path, num_nodes, *, num_edges=3000, options=None, kind="dense", width=6, seed=0):
    """``num_nodes`` after each generation; a quarter of the edges are into a few nodes; some are in two generations."""
    options = options or BuildOptions()
    random = np.random.default_rng(seed)
    total = num_nodes[-1]
    x = random.random((total, width), dtype=np.float32)
    if kind == "sparse":
        x *= random.random((total, width)) < 0.05
    y = np.arange(total) % NUM_CLASSES
    year = np.arange(total, dtype=np.int64) * 3
    parts = []
    for nodes in num_nodes:
        edges = random.integers(0, nodes, (2, num_edges))
        edges[1, : num_edges // 4] = random.integers(0, 5, num_edges // 4) * (nodes // 5)
        edges[:, -20:] = parts[-1][:, :20] if parts else edges[:, :20]
        parts.append(edges)

    def rows(first, stop):
        if first == stop:
            return {}
        features = None if kind == "none" else x[first:stop]
        features = scipy.sparse.csr_matrix(features) if kind == "sparse" else features
        return {"x": features, "y": y[first:stop], "columns": {"year": year[first:stop]}, "num_nodes": stop - first}

    graph = GraphStore.from_edge_index(parts[0], path=path / "grown.ecgl", options=options, **rows(0, num_nodes[0]))
    for first, stop, edges in zip(num_nodes, num_nodes[1:], parts[1:], strict=False):
        graph = graph.append(edges, **rows(first, stop))
    everything = np.concatenate(parts, axis=1)
    whole = GraphStore.from_edge_index(everything, path=path / "whole.ecgl", options=options, **rows(0, total))
    return Both(graph, whole)
