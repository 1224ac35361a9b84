"""Kronecker graphs with the Graph500 parameters, any scale, made block by block.

Edges come once, directed as drawn, with the duplicates and self loops the model has; whoever builds the store
decides about symmetry. Memory: one block at a time (8 bytes an edge up to scale 32, else 16); 20 ns an edge and core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.kronecker import QUADRANTS, alias_table, kronecker_edges, kronecker_key
from ecgl_kernels.random import gaussian_rows, substream
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource
from ecgl_scale.store.row_source import RowSource
from ecgl_scale.store.source import AnyArray, DenseSource, GraphSource

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
    name = f"kron-{scale}-{edge_factor}"
    return GraphSource(
        name=name,
        num_nodes=num_nodes,
        num_edges_hint=edge_factor << scale,
        edges=KronEdges(scale, edge_factor, seed),
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


class KronEdges(EdgeSource):
    """Edges of a Kronecker graph by their numbers, of which each is a function."""

    kind = "kronecker"

    def __init__(self, scale: int, edge_factor: int, seed: int) -> None:
        self._settings = {"scale": scale, "edge_factor": edge_factor, "seed": seed}
        self._scale = scale
        self._num_edges = edge_factor << scale
        self._name = f"kron-{scale}-{edge_factor}"
        self._table = alias_table()
        self._key = kronecker_key(scale, seed)
        self._seed = substream(seed, EDGE_STREAM)
        self._dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint32 if scale <= 32 else np.uint64)

    def cut(self, max_edges: int) -> list[Block]:
        """Any edges can be drawn by themselves."""
        return split_blocks(self._num_edges, max_edges)

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Draw the edges of these numbers."""
        src, dst = np.empty(stop - start, self._dtype), np.empty(stop - start, self._dtype)
        kronecker_edges(start, self._seed, self._scale, self._table, self._key, src, dst)
        return EdgeBlock(src, dst, origin=self._name, first_row=start)

    def identity(self) -> Json:
        """The parameters, of which every edge is a function."""
        return self.describe(Path())

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Give the parameters of the graph."""
        return self._settings

    @classmethod
    def open(cls, description: Json) -> KronEdges:
        """Make the graph of these parameters."""
        return cls(**description)


def gaussian_features(origin: str, num_nodes: int, num_features: int, seed: int) -> DenseSource:
    """Describe standard normal features."""
    source = GaussianRows(num_features, int(substream(seed, FEATURE_STREAM)))

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        for first in range(0, num_nodes, max_rows):
            yield source.read(first, min(first + max_rows, num_nodes))

    return DenseSource(num_features, np.dtype(np.float32), origin, blocks, source)


@dataclass(frozen=True)
class GaussianRows(RowSource):
    """Standard normal rows by their numbers, of which each is a function."""

    kind = "gaussian"
    num_features: int
    seed: int
    """The stream that numbers are drawn from."""

    def read(self, start: int, stop: int) -> AnyArray:
        """Draw the rows of these numbers."""
        rows: NDArray[np.float32] = np.empty((stop - start, self.num_features), np.float32)
        gaussian_rows(start, np.uint64(self.seed), rows)
        return rows

    def identity(self) -> Json:
        """The parameters, of which every row is a function."""
        return asdict(self)

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Give the parameters."""
        return asdict(self)

    @classmethod
    def open(cls, description: Json) -> GaussianRows:
        """Make the rows of these parameters."""
        return cls(**description)


def require_range(what: str, value: int, low: int, high: int) -> None:
    """Refuse numbers out of range."""
    if not low <= value <= high:
        raise UsageError(f"the {what} is {value}", expected=f"{low} to {high}")
