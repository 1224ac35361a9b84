"""How much a first layer's attention over edges depends on its weights: the gradient of the norm of all attentions.

    a_ij = softmax over edges j -> i of  leaky_relu(h_j . tanh(h_i))      every node has one self loop
    |a|  = sqrt(sum a_ij^2)

    d|a| / d(h_j . tanh(h_i)) = a_ij (a_ij - sum_k a_ik^2) / |a| * (1, or the slope where it is below 0)

h are the messages of the layer, ``X W^T + b``, or what the layer makes of them (``propagation``). Edges are read block
by block from the store and cut further, at rows, so that few are worked on at once; a row is never cut.
Memory: ``8 * nodes * width + 3 * 16 MiB``, more where a single row has more edges than that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.graph.adjacency import Adjacency, CsrRows
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.learn.model import Layer
from ecgl_scale.learn.products import add_outer, exact_sum, multiply
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

SLOPE = 0.2
BLOCK_BYTES = 16 * MIB
"""The most that source rows may take that are gathered at once."""

Places = NDArray[np.int64]


def attention_bytes(num_nodes: int, width: int) -> int:
    """Memory that ``attention_gradient`` takes."""
    return 8 * num_nodes * width + 3 * BLOCK_BYTES


@torch.no_grad()  # type: ignore[untyped-decorator]
def attention_gradient(
    graph: GraphStore,
    rows: RowCache,
    layer: Layer,
    *,
    is_bias_inside: bool = True,
    propagation: GraphPropagation | None = None,
) -> tuple[float, torch.Tensor, torch.Tensor | None]:
    """The norm of all attentions, and its gradient by the layer's weight and bias.

    Parameters
    ----------
    rows
        Features of all nodes, in the graph's order.
    is_bias_inside
        The bias is part of the messages; else it counts only after ``propagation``.
    propagation
        Attention is between what nodes have received; without it, between what they send.
    """
    weight, bias = layer
    block_rows = max(BLOCK_BYTES // (4 * rows.num_features), 1)
    h = torch.empty(rows.num_rows, weight.shape[0], device=weight.device)
    for block, x in rows.stream(block_rows):
        multiply(torch.from_numpy(x).to(h.device), weight.t(), h[block.start : block.stop])
    is_used = bias is not None and (is_bias_inside or propagation is not None)
    if bias is not None and is_bias_inside:
        h += bias
    if propagation is not None:
        h = propagation.send(h)
        if bias is not None and not is_bias_inside:
            h += bias
    norm, passed = _norm_and_gradient(graph, h)
    by_bias = passed.sum(0) if is_used and not is_bias_inside else None
    if propagation is not None:
        passed = propagation.send(passed, backwards=True)
    if is_used and is_bias_inside:
        by_bias = passed.sum(0)
    by_weight = torch.zeros_like(weight, requires_grad=False)
    for block, x in rows.stream(block_rows):
        add_outer(by_weight, passed[block.start : block.stop], torch.from_numpy(x).to(h.device))
    return norm, by_weight, by_bias if bias is None or is_used else torch.zeros_like(bias, requires_grad=False)


def _norm_and_gradient(graph: GraphStore, h: torch.Tensor) -> tuple[float, torch.Tensor]:
    gradient = torch.zeros_like(h)
    sum_of_squares = 0.0
    num_edges = max(BLOCK_BYTES // (4 * h.shape[1]), 1)
    for first, rows in Adjacency(graph, without_loops=True).pieces(0, graph.num_nodes):
        for start, stop, sources, targets in _cut_rows(rows, first, num_edges):
            own = torch.tanh(h[start:stop])
            source, target = (torch.from_numpy(ids).to(h.device) for ids in (sources, targets))
            sent = h[source]
            score = torch.linalg.vecdot(sent, own[target])
            attention = _softmax(torch.nn.functional.leaky_relu(score, SLOPE), target, stop - start)
            squares = h.new_zeros(stop - start).index_add_(0, target, attention.square())
            sum_of_squares += exact_sum(squares)
            by_score = attention * (attention - squares[target]) * torch.where(score > 0, 1.0, SLOPE)
            by_own = torch.zeros_like(own).index_add_(0, target, sent.mul_(by_score[:, None]))
            gradient[start:stop] += by_own * (1 - own.square())
            gradient.index_add_(0, source, own[target].mul_(by_score[:, None]))
    norm = sum_of_squares**0.5
    return norm, gradient.div_(max(norm, 1e-30))


def _softmax(score: torch.Tensor, target: torch.Tensor, num_targets: int) -> torch.Tensor:
    highest = score.new_full((num_targets,), float("-inf")).scatter_reduce_(0, target, score, "amax")
    raised = torch.exp(score - highest[target])
    return raised / score.new_zeros(num_targets).index_add_(0, target, raised)[target]


def _cut_rows(rows: CsrRows, first: int, num_edges: int) -> Iterator[tuple[int, int, Places, Places]]:
    """Runs of rows with about ``num_edges`` edges: first row, last + 1, sources, and targets counted from the first.

    The self loop that every row has comes after the edges of all rows of a run.
    """
    offsets, row, count = rows.indptr, 0, rows.num_rows
    while row < count:
        # Loops count as edges too.
        ends = offsets[row + 1 :] - offsets[row] + np.arange(1, count - row + 1)
        stop = row + max(int(np.searchsorted(ends, num_edges, side="right")), 1)
        targets = np.repeat(np.arange(stop - row), np.diff(offsets[row : stop + 1]))
        sources = np.asarray(rows.indices[offsets[row] : offsets[stop]], np.int64)
        loops = np.arange(stop - row)
        sources, targets = np.concatenate([sources, loops + (first + row)]), np.concatenate([targets, loops])
        yield first + row, first + stop, sources, targets
        row = stop
