"""Classes and edges of a block-model graph: what its numbers follow from, and any of its edges by themselves."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels import blockmodel as kernels
from ecgl_kernels.random import permutation_key, permute_block, substream
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource

EDGE_STREAM, NODE_STREAM, CLASS_STREAM = range(16, 19)
IMBALANCE = 0.8
"""Class sizes fall like rank^-0.8: of 47 classes the largest has a sixth of the nodes, the smallest a 140th."""
MAX_CLASS_SHARE = 1 / 8
"""A node has at most this share of its class as targets, else homophily could not be kept."""


@dataclass(frozen=True)
class BlockModel:
    """What the kernels need to know; see ecgl_kernels.blockmodel for the names."""

    class_nodes: NDArray[np.int64]
    class_edges: NDArray[np.int64]
    caps: NDArray[np.float64]
    knees: NDArray[np.float64]
    key: NDArray[np.uint64]
    edge_seed: np.uint64
    homophily: float
    reach: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes in all classes."""
        return int(self.class_nodes[-1])

    @property
    def num_edges(self) -> int:
        """Number of edges of all classes."""
        return int(self.class_edges[-1])

    @property
    def num_classes(self) -> int:
        """Number of classes, each with a node at least."""
        return self.class_nodes.size - 1


@dataclass(frozen=True)
class EdgeSettings:
    """What the edges and labels of a graph follow from."""

    num_nodes: int
    num_classes: int
    num_edges: int
    homophily: float
    symmetrise: bool
    seed: int


def _block_model(settings: EdgeSettings) -> BlockModel:
    num_nodes, num_classes, num_edges, homophily, symmetrise, seed = astuple(settings)
    reach = (num_nodes - 1) // 2 if symmetrise else num_nodes - 1
    if not 1 <= num_edges <= num_nodes * reach // 2:
        raise UsageError(
            f"{num_edges} edges on {num_nodes} nodes",
            expected=f"1 to {num_nodes * reach // 2}, half of all pairs: edges are distinct and no loops",
            fix="lower the average degree, or take more nodes",
        )
    ranks = np.empty(num_classes, np.int64)
    permute_block(0, permutation_key(num_classes, substream(seed, CLASS_STREAM)), ranks)
    shares = np.cumsum((1.0 + ranks) ** -IMBALANCE)
    class_nodes = np.zeros(num_classes + 1, np.int64)
    class_nodes[1:] = np.floor(shares / shares[-1] * (num_nodes - num_classes)).astype(np.int64)
    class_nodes += np.arange(num_classes + 1)
    # in whole numbers: a product of two large counts would lose its last digits as float64
    class_edges = np.array([num_edges * int(nodes) // num_nodes for nodes in class_nodes], np.int64)

    sizes = np.diff(class_nodes).astype(np.float64)
    means = np.diff(class_edges) / sizes
    # below reach, so that a slip of one in floating point cannot ask for more targets than there are
    caps = np.minimum(np.maximum(np.ceil(2.0 * means), np.ceil(sizes * MAX_CLASS_SHARE)), max(reach - 1, 1))
    # F(s) = E_c with q = E_c / (cap s): 2 sqrt(knee / s) - knee / s = q
    knees = sizes * (1.0 - np.sqrt(np.maximum(1.0 - means / caps, 0.0))) ** 2
    # a class without edges is never asked for one; any positive number keeps the formulas finite
    knees = np.maximum(knees, np.finfo(np.float64).tiny)
    key = permutation_key(num_nodes, substream(seed, NODE_STREAM))
    return BlockModel(class_nodes, class_edges, caps, knees, key, substream(seed, EDGE_STREAM), float(homophily), reach)


class SbmEdges(EdgeSource):
    """Edges of a block-model graph by their numbers, of which each is a function."""

    kind = "block model"

    def __init__(self, origin: str, settings: EdgeSettings) -> None:
        self._origin = origin
        self._settings = settings
        self.graph = _block_model(settings)

    def cut(self, max_edges: int) -> list[Block]:
        """Any edges can be drawn by themselves."""
        return split_blocks(self.graph.num_edges, max_edges)

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Draw the edges of these numbers."""
        graph = self.graph
        dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint32 if graph.num_nodes <= 1 << 32 else np.uint64)
        src, dst = np.empty(stop - start, dtype), np.empty(stop - start, dtype)
        kernels.block_model_edges(
            start, graph.edge_seed, graph.homophily, graph.reach, graph.class_nodes, graph.class_edges, graph.caps,
            graph.knees, graph.key, src, dst,
        )  # fmt: skip
        return EdgeBlock(src, dst, origin=self._origin, first_row=start)

    def identity(self) -> Json:
        """The parameters, of which every edge is a function."""
        return self.describe(Path())

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Give the settings of the graph."""
        return {"origin": self._origin, "settings": asdict(self._settings)}

    @classmethod
    def open(cls, description: Json) -> SbmEdges:
        """Make the graph of these settings."""
        return cls(description["origin"], EdgeSettings(**description["settings"]))
