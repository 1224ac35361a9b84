"""A set of nodes of a graph, a bit each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.node_set import add_nodes, list_nodes

Ints = NDArray[np.int64]


class NodeSet:
    """Some of ``num_nodes`` nodes. Memory: a bit for each node of the graph."""

    def __init__(self, num_nodes: int, words: NDArray[np.uint64] | None = None) -> None:
        self.num_nodes = num_nodes
        self.words = np.zeros(-(-num_nodes // 64), np.uint64) if words is None else words

    def add(self, nodes: NDArray[Any]) -> None:
        """Put nodes in, each of which must be one of the graph's; they may repeat."""
        add_nodes(nodes, self.words)

    def __or__(self, other: NodeSet) -> NodeSet:
        """The nodes of both."""
        return NodeSet(self.num_nodes, self.words | other.words)

    def __and__(self, other: NodeSet) -> NodeSet:
        """The nodes that both have."""
        return NodeSet(self.num_nodes, self.words & other.words)

    def without(self, other: NodeSet) -> NodeSet:
        """The nodes that the other does not have."""
        return NodeSet(self.num_nodes, self.words & ~other.words)

    def copy(self) -> NodeSet:
        """Give the same nodes as a set that can be added to."""
        return NodeSet(self.num_nodes, self.words.copy())

    def __len__(self) -> int:
        """How many nodes there are."""
        return list_nodes(self.words, np.zeros_like(self.words), np.empty(0, np.int64))

    def ids(self, known: NodeSet | None = None) -> Ints:
        """The nodes, ascending, without those that are known. Memory: 8 bytes each."""
        before = np.zeros_like(self.words) if known is None else known.words
        found = np.empty(list_nodes(self.words, before, np.empty(0, np.int64)), np.int64)
        list_nodes(self.words, before, found)
        return found
