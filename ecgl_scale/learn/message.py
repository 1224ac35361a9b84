"""Training as a graph network (``train_as: gcn``, the paper's ablation): messages over a whole task graph.

    P x = row_scale * (A + I) (source_scale * x),   backward: P^T g, the same over the transposed edges, scales swapped

    sum   no scales        mean   row_scale = 1 / d_in        sym   source_scale = d_out^-1/2, row_scale = d_in^-1/2

Degrees count the one self loop that every node has; stored ones are it. Each row is summed by one thread, so the bits
do not depend on threads. Memory: ``plan_propagation``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_kernels.spmm import invert_degrees, propagate_rows
from ecgl_kernels.transpose import copy_without_loops, transpose_rows
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.loss import Targets
from ecgl_scale.learn.model import BiasPlace, Columns, Encoder, Rows, SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

STAGE = "hold the task graph"
RESERVE_BYTES = 32 * MIB
"""For torch's threads, its caches and small objects."""
Norm = Literal["sym", "sum", "mean"]
RANGES_PER_THREAD = 8
"""Ranges of rows with about equal numbers of edges: few hand-overs, and all threads end together."""


def edge_bytes_of(graph: GraphStore, num_nodes: int, num_edges: int) -> int:
    """Memory of so many nodes and edges of a graph: one side where it is symmetric, else both."""
    sides = 1 if graph.manifest.edges.symmetrised else 2
    return sides * (8 * (num_nodes + 1) + graph.edges.id_dtype.itemsize * num_edges)


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


@dataclass(frozen=True, eq=False)
class _Side:
    """Edges as CSR rows of those who receive, in one direction."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """With the self loop."""
        return np.diff(self.indptr) + 1

    def cuts(self, count: int) -> list[int]:
        """Row numbers that share the edges out."""
        targets = np.linspace(0, self.indptr[-1], count + 1)[1:-1]
        inner = np.unique(np.searchsorted(self.indptr, targets)).tolist()
        last = self.indptr.size - 1
        return [0, *(cut for cut in inner if 0 < cut < last), last]


class GraphPropagation:
    """``P x`` for torch, whole graph in memory: calling it gives a tensor whose gradient is ``P^T``."""

    def __init__(
        self,
        graph: GraphStore,
        resources: Resources,
        norm: Norm = "sym",
        *,
        backend: Literal["auto", "numba", "torch"] = "auto",
    ) -> None:
        needed = edge_bytes_of(graph, graph.num_nodes, graph.num_edges)
        resources.require(needed, stage=STAGE, formula=f"{format_bytes(needed)} of edges")
        self._hold(_load_side(graph), graph.manifest.edges.symmetrised, norm, backend, resources.threads)

    @classmethod
    def from_csr(cls, indptr: NDArray[np.int64], indices: NDArray[Any], norm: Norm = "sym") -> GraphPropagation:
        """Messages of a small graph in memory: node i hears ``indices[indptr[i] : indptr[i + 1]]``, no self loops."""
        made = cls.__new__(cls)
        made._hold(_Side(indptr, np.asarray(indices, np.uint32)), False, norm, "auto", 1)
        return made

    def _hold(self, into: _Side, is_symmetric: bool, norm: Norm, backend: str, threads: int) -> None:
        if norm not in ("sym", "sum", "mean") or backend not in ("auto", "numba", "torch"):
            raise UsageError(f"no such messages: {norm!r} by {backend!r}", expected="sym, sum or mean; numba or torch")
        self.norm = norm
        self.num_nodes = into.indptr.size - 1
        self._threads = threads
        self._backend = backend
        self._into = into
        self._out_of = into if is_symmetric else _transposed(into)
        self._in_scale = None if norm == "sum" else _inverse(self._into, norm)
        self._out_scale = _inverse(self._out_of, norm) if norm == "sym" else None
        self._matrices: dict[tuple[bool, torch.device], torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Messages of all nodes to all nodes: [N, columns] to [N, columns]."""
        if x.ndim != 2 or len(x) != self.num_nodes:
            raise UsageError(f"messages of shape {list(x.shape)}", expected=f"a row for each of {self.num_nodes} nodes")
        sent: torch.Tensor = _Messages.apply(x, self)
        return sent

    def send(self, x: torch.Tensor, *, backwards: bool = False) -> torch.Tensor:
        """``P x``, or ``P^T x``, without a gradient of its own."""
        if backwards:
            side, source_scale, row_scale = self._out_of, self._in_scale, self._out_scale
        else:
            side, source_scale, row_scale = self._into, self._out_scale, self._in_scale
        if self._backend == "torch" or x.device.type != "cpu":
            key = (backwards and side is not self._into, x.device)
            if key not in self._matrices:
                self._matrices[key] = _matrix_of(side, x.device)
            return _send_by_torch(self._matrices[key], x.detach(), source_scale, row_scale)
        rows = x.detach().to(torch.float32).contiguous().numpy()
        out = np.empty_like(rows)

        def propagate(cut: tuple[int, int]) -> None:
            first, stop = cut
            scale = None if row_scale is None else row_scale[first:stop]
            indptr = side.indptr[first : stop + 1]
            propagate_rows(indptr, side.indices, rows, first, True, source_scale, scale, out[first:stop])

        cuts = side.cuts(RANGES_PER_THREAD * self._threads)
        list(map_bounded(propagate, pairwise(cuts), threads=self._threads))
        return torch.from_numpy(out)


class _Messages(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, propagation: GraphPropagation) -> torch.Tensor:
        ctx.propagation = propagation
        return propagation.send(x).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if not ctx.needs_input_grad[0]:
            return None, None
        return ctx.propagation.send(gradients[0], backwards=True).to(gradients[0].dtype), None


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
        """The same in any columns of the head."""
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


def _load_side(graph: GraphStore) -> _Side:
    indptr = np.zeros(graph.num_nodes + 1, np.int64)
    indices = np.empty(graph.num_edges, graph.edges.id_dtype)
    position = 0
    for block, rows in graph.edges.stream():
        position = copy_without_loops(rows.offsets, rows.values, block.start, position, indptr, indices)
    return _Side(indptr, indices[:position])


def _transposed(side: _Side) -> _Side:
    indptr, indices = np.zeros_like(side.indptr), np.empty_like(side.indices)
    transpose_rows(side.indptr, side.indices, indptr, indices)
    return _Side(indptr, indices)


def _inverse(side: _Side, norm: Norm) -> NDArray[np.float32]:
    scale = np.empty(side.indptr.size - 1, np.float32)
    invert_degrees(side.degrees, norm == "sym", scale)
    return scale


def _matrix_of(side: _Side, device: torch.device) -> torch.Tensor:
    """A for torch's own product. Memory on the device: 20 bytes an edge."""
    rows = np.repeat(np.arange(side.indptr.size - 1), np.diff(side.indptr))
    ids = torch.from_numpy(np.stack([rows, side.indices.astype(np.int64)])).to(device)
    shape = (side.indptr.size - 1, side.indptr.size - 1)
    # Edges that are stored twice count twice, so they must not be taken for one: nothing is coalesced.
    return torch.sparse_coo_tensor(ids, torch.ones(ids.shape[1], device=device), shape, check_invariants=False)


def _send_by_torch(
    matrix: torch.Tensor,
    x: torch.Tensor,
    source_scale: NDArray[np.float32] | None,
    row_scale: NDArray[np.float32] | None,
) -> torch.Tensor:
    """The same sums on any device."""
    if source_scale is not None:
        x = x * torch.from_numpy(source_scale).to(x.device)[:, None]
    out = torch.sparse.mm(matrix, x) + x
    return out if row_scale is None else out * torch.from_numpy(row_scale).to(x.device)[:, None]
