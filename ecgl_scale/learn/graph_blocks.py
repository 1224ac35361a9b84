"""Training a graph network of two layers on graphs whose hidden layer does not fit: the exact gradient, in row blocks.

    forward    H = relu(P X W1^T + b1)  block by block    Z = H W2^T    logits = P Z          narrow: [N, classes]
    backward   G = d loss / d logits    dZ = P^T G        then, block by block, with H computed once more:
               dW2 += dZ^T H    dH = dZ W2 where H > 0    dW1 += dH^T P X

P X never changes, so it is made once, in memory or in a file. A bias inside (before the messages) is added P 1 times.
The hidden layer is never whole in memory, and nothing is sampled: the gradient is the full batch's up to rounding.
Memory: edges both ways, ``16 N`` bytes a class that is compared, and a block; see ``plan_blocks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.graph.autograd import edge_bytes_of
from ecgl_scale.graph.propagate import plan_one_hop
from ecgl_scale.learn.feed import block_rows_for
from ecgl_scale.learn.graph_segment import RESERVE_BYTES, GraphSegment
from ecgl_scale.learn.model import Columns, SharedWeights
from ecgl_scale.learn.products import add_outer, multiply, weighted_sum
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

WHOLE_BELOW_BYTES = 32 * MIB
"""Hidden layers up to this size are held whole, about six times; fixed, so that the memory given changes no result.
In blocks larger ones take no longer, as blocks stay in the cache: 228 ms against 296 at 39 MiB, 549 against 722 at 78.
"""
SPARSE_WHOLE_BELOW_BYTES = 256 * MIB
"""The limit where features are sparse: in blocks they are made dense by their first messages, which costs far more."""


def trains_in_blocks(
    num_nodes: int, widths: Sequence[int], *, encoder: str, dropout: float, device: str, is_sparse: bool
) -> bool:
    """Whether a graph is trained block by block: where it is large, and the network is one that can be."""
    can = len(widths) == 3 and encoder != "sgc" and not dropout and torch.device(device).type == "cpu"
    return can and 4 * num_nodes * widths[1] > (SPARSE_WHOLE_BELOW_BYTES if is_sparse else WHOLE_BELOW_BYTES)


def plan_blocks(
    graph: GraphStore,
    widths: Sequence[int],
    *,
    num_nodes: int,
    num_edges: int,
    room_bytes: int,
    beside_bytes: int = 0,
    holds_sent: bool = True,
) -> StagePlan:
    """What training in blocks takes where there are ``room_bytes``, with ``beside_bytes`` for something else.

    ``edges + max(P X being made, P X if held + (8 + 16 classes) N + a block * 4 (features + 2 hidden + classes))``
    + 32 MiB; edges both ways where they differ. See ``graph.propagate.plan_one_hop`` for P X.
    """
    edges = edge_bytes_of(graph, num_nodes, num_edges)
    room, training = room_bytes - edges - RESERVE_BYTES, block_bytes(widths, num_nodes) + beside_bytes
    beside = training if holds_sent else room
    layout = plan_one_hop(num_nodes, num_nodes, widths[0], room_bytes=room, beside_result_bytes=beside)
    needed = edges + max(layout.peak_bytes, layout.held_bytes + training) + RESERVE_BYTES
    formula = (
        f"{format_bytes(edges)} of edges + {format_bytes(layout.held_bytes)} of propagated features held"
        f" + {num_nodes:,} nodes * {8 + 16 * widths[2]:,} bytes and a block: {format_bytes(training)}"
    )
    written = 0 if layout.held_bytes else 4 * num_nodes * widths[0]
    return StagePlan(
        "train as a graph", needed, formula, read_bytes=edges, written_bytes=written, setting="learn.train_as"
    )


def block_bytes(widths: Sequence[int], num_nodes: int) -> int:
    """What an epoch in blocks takes besides edges and P X."""
    rows = min(block_rows_for(widths, None, is_sparse=False), num_nodes)
    return (8 + 16 * widths[2]) * num_nodes + 4 * rows * (widths[0] + 2 * widths[1] + widths[2])


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockedGraphSegment(GraphSegment):
    """A task graph whose gradient is worked out block by block."""

    sent: RowCache
    """P X, all nodes, in the graph's order."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def add_gradient(self, weights: SharedWeights, *, block_rows: int | None = None) -> torch.Tensor:
        """Add the gradient to every weight's ``.grad``; returns the loss in float64."""
        (first, first_bias), (last, last_bias) = weights.layers
        head, is_inside = self.head, self.bias_place == "inside"
        narrow = last[head]
        size = block_rows_for(weights.widths, block_rows, is_sparse=False)
        outputs = self._all_outputs(weights, head, size)
        loss, gradient = self._loss_and_gradient(outputs)
        del outputs
        if last_bias is not None and not is_inside:
            _add(last_bias, head, gradient.sum(0))
        gradient = self.propagation.send(gradient, backwards=True)
        if last_bias is not None and is_inside:
            _add(last_bias, head, gradient.sum(0))
        buffer = torch.empty(min(size, self.rows.num_rows), narrow.shape[1])
        for rows, x, hidden in self._hidden(first, first_bias, size):
            by_head = torch.zeros_like(narrow)
            add_outer(by_head, gradient[rows], hidden)
            _add(last, head, by_head)
            passed = multiply(gradient[rows], narrow, buffer[: len(hidden)])
            torch.ops.aten.threshold_backward.grad_input(passed, hidden, 0, grad_input=passed)
            add_outer(first.grad, passed, x)
            if first_bias is not None:
                first_bias.grad += _weighted_rows(self._row_sums[rows], passed) if is_inside else passed.sum(0)
        return loss

    def outputs(
        self,
        weights: SharedWeights,
        columns: Columns,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Outputs of the labelled nodes, computed block by block where no gradient is asked for."""
        if torch.is_grad_enabled() or dropout:
            return super().outputs(weights, columns, dropout=dropout, generator=generator)
        size = block_rows_for(weights.widths, None, is_sparse=False)
        return self._all_outputs(weights, columns, size)[self._local]

    def _all_outputs(self, weights: SharedWeights, columns: Columns, size: int) -> torch.Tensor:
        (first, first_bias), (last, last_bias) = weights.layers
        narrow, bias = last[columns], None if last_bias is None else last_bias[columns]
        outputs = torch.empty(self.rows.num_rows, len(narrow))
        for rows, _, hidden in self._hidden(first, first_bias, size):
            multiply(hidden, narrow.t(), outputs[rows])
        if bias is not None and self.bias_place == "inside":
            outputs += bias
        outputs = self.propagation.send(outputs)
        return outputs if bias is None or self.bias_place == "inside" else outputs.add_(bias)

    def _hidden(
        self, weight: torch.Tensor, bias: torch.Tensor | None, size: int
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Rows, P X and hidden layer of every block; the last in memory that is used again for the next."""
        buffer = torch.empty(min(size, self.rows.num_rows), weight.shape[0])
        for block, x in self.sent.stream(size):
            rows = slice(block.start, block.stop)
            inputs = torch.from_numpy(x)
            hidden = multiply(inputs, weight.t(), buffer[: block.num_rows])
            if bias is not None and self.bias_place == "inside":
                hidden.addcmul_(self._row_sums[rows], bias)
            elif bias is not None:
                hidden.add_(bias)
            yield rows, inputs, hidden.clamp_(min=0)

    def _loss_and_gradient(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            logits = outputs[self._local].requires_grad_()
            terms = self.terms(logits, slice(0, self.num_rows))
            torch.autograd.backward([losses for losses, _ in terms], [coefficients for _, coefficients in terms])
        gradient = torch.zeros_like(outputs).index_add_(0, self._local, logits.grad)
        loss = torch.zeros((), dtype=torch.float64)
        for losses, coefficients in terms:
            loss += weighted_sum(losses.detach(), coefficients)
        return loss, gradient

    @cached_property
    def _row_sums(self) -> torch.Tensor:
        return self.propagation.send(torch.ones(self.rows.num_rows, 1))


def _weighted_rows(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(1, rows.shape[1], device=rows.device)
    add_outer(found, weights, rows)
    return found[0]


def _add(parameter: torch.Tensor, columns: Columns, gradient: torch.Tensor) -> None:
    if isinstance(columns, slice):
        parameter.grad[columns] += gradient
    else:
        parameter.grad.index_add_(0, columns, gradient)
