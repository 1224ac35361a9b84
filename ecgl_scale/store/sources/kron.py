"""Kronecker graphs with the Graph500 parameters, any scale, made block by block.

Edges come once, directed as drawn, with the duplicates and self loops the model has; whoever builds the store
decides about symmetry. Memory: one block at a time (8 bytes an edge up to scale 32, else 16); 20 ns an edge and core.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.kronecker import QUADRANTS, alias_table, kronecker_edges, kronecker_key
from ecgl_kernels.random import gaussian_rows, substream
from ecgl_scale.errors import UsageError
from ecgl_scale.store.source import AnyArray, DenseSource, EdgeBlock, EdgeLoader, GraphSource

EDGE_STREAM, FEATURE_STREAM = 0, 2


def kron_source(*, scale: int, edge_factor: int = 16, seed: int = 0, num_features: int = 0) -> GraphSource:
    """Describe the Kronecker graph of 2^scale nodes and ``edge_factor`` edges a node.

    Parameters
    ----------
    num_features
        Standard normal float32 features a node; 0 for none.

    Raises
    ------
    UsageError
        An argument is out of range.
    """
    require_range("scale", scale, 1, 40)
    require_range("edge factor", edge_factor, 1, 4096)
    require_range("number of features", num_features, 0, 1 << 16)
    require_range("seed", seed, 0, (1 << 63) - 1)
    num_nodes = 1 << scale
    num_edges = edge_factor << scale
    name = f"kron-{scale}-{edge_factor}"

    table = alias_table()
    key = kronecker_key(scale, seed)
    edge_seed = substream(seed, EDGE_STREAM)
    dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint32 if scale <= 32 else np.uint64)

    def load(first: int, count: int) -> EdgeBlock:
        src, dst = np.empty(count, dtype), np.empty(count, dtype)
        kronecker_edges(first, edge_seed, scale, table, key, src, dst)
        return EdgeBlock(src, dst, origin=name, first_row=first)

    def loaders(max_edges: int) -> Iterator[EdgeLoader]:
        for first in range(0, num_edges, max_edges):
            yield partial(load, first, min(max_edges, num_edges - first))

    return GraphSource(
        name=name,
        num_nodes=num_nodes,
        num_edges_hint=num_edges,
        edge_loaders=loaders,
        features=gaussian_features(name, num_nodes, num_features, seed) if num_features else None,
        provenance={
            "generator": "kronecker",
            "scale": scale,
            "edge_factor": edge_factor,
            "quadrants": list(QUADRANTS),
            "num_features": num_features,
            "seed": seed,
            "symmetrise": True,
        },
    )


def gaussian_features(origin: str, num_nodes: int, num_features: int, seed: int) -> DenseSource:
    """Describe standard normal features."""
    feature_seed = substream(seed, FEATURE_STREAM)

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        for first in range(0, num_nodes, max_rows):
            rows: NDArray[np.float32] = np.empty((min(max_rows, num_nodes - first), num_features), np.float32)
            gaussian_rows(first, feature_seed, rows)
            yield rows

    return DenseSource(num_features=num_features, dtype=np.dtype(np.float32), origin=origin, blocks=blocks)


def require_range(what: str, value: int, low: int, high: int) -> None:
    """Refuse numbers out of range."""
    if not low <= value <= high:
        raise UsageError(f"the {what} is {value}", expected=f"{low} to {high}")
