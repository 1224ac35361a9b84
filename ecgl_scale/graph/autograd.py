"""P and its transpose for torch, with the whole graph in memory, so that losses have gradients through messages.

    forward    P x = row_scale * (A + I) (source_scale * x)
    backward   P^T g, the same over the transposed edges with the scales swapped

Each row is summed by one thread, so the bits do not depend on threads.
Memory: 8 bytes a node and the ids of the edges, twice unless the graph is symmetric; 4 bytes a node and scale.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.adjacency import Adjacency, CsrRows, Scales
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import format_bytes

STAGE = "hold the task graph"
RANGES_PER_THREAD = 8
"""Ranges of rows with about equal numbers of edges: few hand-overs, and all threads end together."""
Backend = Literal["auto", "numba", "torch"]


def edge_bytes_of(graph: GraphStore, num_nodes: int, num_edges: int) -> int:
    """Memory of so many nodes and edges of a graph: one side where it is symmetric, else both."""
    sides = 1 if graph.manifest.edges.symmetrised else 2
    return sides * (8 * (num_nodes + 1) + graph.edges.id_dtype.itemsize * num_edges)


class GraphPropagation:
    """``P x`` for torch: calling it gives a tensor whose gradient is ``P^T``."""

    def __init__(
        self, graph: GraphStore, resources: Resources, norm: Norm = "sym", *, backend: Backend = "auto"
    ) -> None:
        needed = edge_bytes_of(graph, graph.num_nodes, graph.num_edges)
        resources.require(needed, stage=STAGE, formula=f"{format_bytes(needed)} of edges")
        self._hold(Adjacency(graph).whole(), graph.manifest.edges.symmetrised, norm, backend, resources.threads)

    @classmethod
    def from_csr(cls, indptr: NDArray[np.int64], indices: NDArray[Any], norm: Norm = "sym") -> GraphPropagation:
        """Messages of a small graph in memory: node i hears ``indices[indptr[i] : indptr[i + 1]]``, no self loops."""
        made = cls.__new__(cls)
        made._hold(CsrRows(indptr, np.asarray(indices, np.uint32)), False, norm, "auto", 1)
        return made

    def _hold(self, into: CsrRows, is_symmetric: bool, norm: Norm, backend: Backend, threads: int) -> None:
        if norm not in get_args(Norm) or backend not in get_args(Backend):
            raise UsageError(f"no such messages: {norm!r} by {backend!r}", expected="sym, sum or mean; numba or torch")
        self.norm = norm
        self.num_nodes = into.num_rows
        self._threads = threads
        self._backend = backend
        self._into = into
        self._out_of = into if is_symmetric else into.transposed()
        source = self._out_of.inverse_degrees(norm, adds_self=True) if norm == "sym" else None
        self._scales = Scales(into.inverse_degrees(norm, adds_self=True), source)
        self._matrices: dict[tuple[bool, torch.device], torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Messages of all nodes to all nodes: [N, columns] to [N, columns]."""
        if x.ndim != 2 or len(x) != self.num_nodes:
            raise UsageError(f"messages of shape {list(x.shape)}", expected=f"a row for each of {self.num_nodes} nodes")
        sent: torch.Tensor = _Messages.apply(x, self)
        return sent

    def send(self, x: torch.Tensor, *, backwards: bool = False) -> torch.Tensor:
        """``P x``, or ``P^T x``, without a gradient of its own."""
        side = self._out_of if backwards else self._into
        scales = Scales(self._scales.source, self._scales.row) if backwards else self._scales
        if self._backend == "torch" or x.device.type != "cpu":
            key = (backwards and side is not self._into, x.device)
            if key not in self._matrices:
                self._matrices[key] = _matrix_of(side, x.device)
            return _send_by_torch(self._matrices[key], x.detach(), scales)
        rows = x.detach().to(torch.float32).contiguous().numpy()
        out = np.empty_like(rows)

        def propagate(cut: tuple[int, int]) -> None:
            first, stop = cut
            scale = None if scales.row is None else scales.row[first:stop]
            indptr = side.indptr[first : stop + 1]
            propagate_rows(indptr, side.indices, rows, first, True, scales.source, scale, out[first:stop])

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


def _matrix_of(side: CsrRows, device: torch.device) -> torch.Tensor:
    """A for torch's own product. Memory on the device: 20 bytes an edge."""
    rows = np.repeat(np.arange(side.num_rows), np.diff(side.indptr))
    ids = torch.from_numpy(np.stack([rows, side.indices.astype(np.int64)])).to(device)
    shape = (side.num_rows, side.num_rows)
    # Edges that are stored twice count twice, so they must not be taken for one: nothing is coalesced.
    return torch.sparse_coo_tensor(ids, torch.ones(ids.shape[1], device=device), shape, check_invariants=False)


def _send_by_torch(matrix: torch.Tensor, x: torch.Tensor, scales: Scales) -> torch.Tensor:
    """P x as torch sums it, on any device."""
    if scales.source is not None:
        x = x * torch.from_numpy(scales.source).to(x.device)[:, None]
    out = torch.sparse.mm(matrix, x) + x
    return out if scales.row is None else out * torch.from_numpy(scales.row).to(x.device)[:, None]
