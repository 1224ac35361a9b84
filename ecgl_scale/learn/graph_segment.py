"""Training as a graph network (``train_as: gcn``, the paper's ablation): a task graph as a whole, all rows at once.

Messages and their gradient are ``graph.autograd``'s; here is what a task graph's loss and its memory are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.autograd import GraphPropagation, edge_bytes_of
from ecgl_scale.graph.convolution import BiasPlace, Encoder
from ecgl_scale.learn.loss import Targets
from ecgl_scale.learn.model import Columns, Rows, SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

RESERVE_BYTES = 32 * MIB
"""For torch's threads, its caches and small objects."""


def held_graph_bytes(
    graph: GraphStore, widths: Sequence[int], num_nodes: int, num_edges: int, *, values_a_row: float | None = None
) -> int:
    """Memory of a graph between two epochs: edges, scales, features and their first messages; sparse ones have none."""
    row_bytes = 8 * widths[0] if values_a_row is None else 8 + 8 * math.ceil(values_a_row)
    return edge_bytes_of(graph, num_nodes, num_edges) + (8 + row_bytes) * num_nodes


def plan_propagation(
    graph: GraphStore,
    widths: Sequence[int],
    *,
    dropout: float = 0.0,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    values_a_row: float | None = None,
) -> StagePlan:
    """What training on the whole graph takes: edges both ways, features, their first messages, all activations.

    ``sides * (8 (N + 1) + 4 E) + 8 N + 4 N * (2 features + 6 * hidden (8 with dropout) + 6 * classes)`` + 32 MiB;
    one side for symmetric graphs, else two; ids take 8 bytes past 2^32 nodes. Autograd's memory is the allocator's, so
    two of the hidden layers are for what it keeps back. Sparse rows take 8 bytes a value and no dense messages.
    ``num_nodes`` and ``num_edges`` are those of a part of it.
    """
    nodes = graph.num_nodes if num_nodes is None else num_nodes
    edges = graph.num_edges if num_edges is None else num_edges
    held = held_graph_bytes(graph, widths, nodes, edges, values_a_row=values_a_row)
    edge_bytes = edge_bytes_of(graph, nodes, edges)
    copies = 8 if dropout else 6
    floats = copies * sum(widths[1:-1]) + 6 * widths[-1]
    needed = held + 4 * nodes * floats + RESERVE_BYTES
    node_bytes = (held - edge_bytes) // max(nodes, 1) + 4 * floats
    formula = f"{format_bytes(edge_bytes)} of edges + {nodes:,} nodes * {node_bytes:,} bytes"
    return StagePlan("train as a graph", needed, formula, read_bytes=edge_bytes, passes=1, setting="learn.train_as")


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSegment(Targets):
    """A task graph trained as a whole: all its rows send messages, those at ``local`` have targets.

    Bank rows stand beside it as ordinary segments: they have no edge but their own loop, and over that alone every
    P is the identity.
    """

    rows: RowCache
    """All nodes of the graph, in its order."""
    propagation: GraphPropagation
    local: NDArray[np.int64]
    encoder: Encoder = "gcn"
    bias_place: BiasPlace = "inside"
    _sent: list[tuple[Rows, torch.Tensor]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows.num_rows != self.propagation.num_nodes or len(self.local) != self.num_rows:
            raise UsageError(
                f"{self.rows.num_rows} rows, {self.propagation.num_nodes} nodes, {len(self.local)} labelled",
                expected="a row for each node, a label for each that is trained on",
            )

    def logits(
        self, weights: SharedWeights, *, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Outputs of the labelled nodes, in the columns of ``head``."""
        return self.outputs(weights, self.head, dropout=dropout, generator=generator)

    def outputs(
        self,
        weights: SharedWeights,
        columns: Columns,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Outputs of the labelled nodes in any columns of the head."""
        logits = weights.gcn(
            self._inputs(weights.device),
            self._propagate,
            encoder=self.encoder,
            bias_place=self.bias_place,
            columns=columns,
            dropout=dropout,
            generator=generator,
        )
        return logits[self._local.to(logits.device)]

    def _propagate(self, x: torch.Tensor) -> torch.Tensor:
        """Messages of the features themselves are the same in every epoch: they are sent once and kept."""
        for given, sent in self._sent:
            if x is given:
                return sent
        # Sparse rows never become `_dense_input`, which would take as much memory as their width wants.
        is_fixed = x is self.__dict__.get("_dense_input") or any(x is sent for _, sent in self._sent)
        sent = self.propagation(x)
        if is_fixed:
            self._sent.append((x, sent))
        return sent

    def _inputs(self, device: torch.device) -> Rows:
        if self.rows.is_sparse and device.type == "cpu" and self.encoder != "sgc":
            return self.rows.read_sparse(0, self.rows.num_rows)
        if self._dense_input.device != device:
            self.__dict__["_dense_input"] = self._dense_input.to(device)
        return self._dense_input

    @cached_property
    def _dense_input(self) -> torch.Tensor:
        return torch.from_numpy(self.rows.read(0, self.rows.num_rows))

    @cached_property
    def _local(self) -> torch.Tensor:
        return torch.from_numpy(np.array(self.local, np.int64))
