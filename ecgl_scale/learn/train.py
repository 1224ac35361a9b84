"""Training with the exact gradient of all rows, block by block: rows are read ahead, moved and back-propagated in turn.

Gradients of blocks are added up in fixed lanes (``lanes``); after the last block there is one step of Adam. So an epoch
needs memory for a few blocks and the weights, however many rows there are, and its gradient is the full batch's up to
rounding. Blocks are fixed by ``block_rows``: the bits depend neither on threads that read, nor on how far ahead.
``batching="minibatch"`` takes a step a batch instead, in an order drawn from (seed, task, epoch).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block, split_blocks, stream_blocks
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.learn.adam import Adam, take_tensor
from ecgl_scale.learn.feed import Feed, block_rows_for, on_device
from ecgl_scale.learn.gradient import MlpGradient
from ecgl_scale.learn.graph_blocks import BlockedGraphSegment
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.lanes import LANE_SUM_BYTES, LaneSum, cut_parts, read_parts
from ecgl_scale.learn.loss import Segment
from ecgl_scale.learn.model import Columns, SharedWeights
from ecgl_scale.learn.products import weighted_sum
from ecgl_scale.learn.ranks import exchange_bytes, formula_of_exchange
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import MIB, format_bytes

AnySegment = Segment | GraphSegment
Penalty = Callable[[SharedWeights], torch.Tensor]
Adjust = Callable[[], None]

RESERVE_BYTES = 32 * MIB
"""For torch's threads, its caches and small objects."""
WEIGHT_COPIES = 4
"""Each weight, its gradient, two moments, in float32; a device needs two buffers of the step besides."""
EARLIER = "earlier"
"""The part of a state that has the weights as they were when they were kept."""


@dataclass(frozen=True)
class EpochResult:
    """How an epoch went."""

    loss: float
    """Sum over all rows of coefficient * CE, and the penalty; for mini-batches each row's at the time of its batch."""
    seconds: float


def plan_training(
    widths: Sequence[int],
    *,
    block_rows: int | None = None,
    rows_held: bool = True,
    is_sparse: bool = False,
    dropout: float = 0.0,
    read_ahead: int = 1,
    num_rows: int | None = None,
    num_ranks: int = 1,
) -> StagePlan:
    """What an epoch takes besides the rows that are held (``plan_rows``).

    ``24 bytes a weight + block_rows * 4 * (buffers * features + 2 * hidden (3 with dropout) + 2 * classes) + 32 MiB``;
    buffers are ``read_ahead + 1`` where rows are not held as float32, else none. Sparse rows: 32 bytes a weight.
    Of the 24, 8 are the sum of lanes, which epochs of one lane do not need. Ranks: ``exchange_bytes`` besides.
    """
    rows = block_rows_for(widths, block_rows, is_sparse=is_sparse)
    rows = rows if num_rows is None else min(rows, max(num_rows, 1))
    num_weights = sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(widths))
    buffers = 0 if rows_held or is_sparse else read_ahead + 1
    copies = 3 if dropout else 2
    floats = buffers * widths[0] + copies * sum(widths[1:-1]) + 2 * widths[-1]
    weight_bytes = (4 * (WEIGHT_COPIES + (2 if is_sparse else 0)) + LANE_SUM_BYTES) * num_weights
    formula = (
        f"{format_bytes(weight_bytes)} for {num_weights:,} weights, gradients, sums and moments + {rows:,} rows a block"
        f" * {4 * floats:,} bytes + {format_bytes(RESERVE_BYTES)}{formula_of_exchange(num_weights, num_ranks)}"
    )
    weight_bytes += exchange_bytes(num_weights, num_ranks)
    needed = weight_bytes + rows * 4 * floats + RESERVE_BYTES
    return StagePlan(
        "train",
        needed,
        formula,
        device_bytes=weight_bytes + 8 * num_weights + rows * 4 * (2 * widths[0] + floats),
        blocks=0 if num_rows is None else -(-num_rows // rows),
        setting="learn.block_rows",
    )


class Trainer:
    """Weights, the optimizer's moments, and how to run an epoch over segments of rows."""

    def __init__(
        self,
        weights: SharedWeights,
        *,
        lr: float = 0.005,
        weight_decay: float = 0.0005,
        device: str | torch.device = "cpu",
        block_rows: int | None = None,
        dropout: float = 0.0,
        seed: int = 0,
        batching: Literal["full", "minibatch"] = "full",
        batch_rows: int = 8000,
        read_ahead: int = 1,
        threads: int = 1,
    ) -> None:
        if not 0 <= dropout < 1 or batch_rows < 1 or lr <= 0 or batching not in ("full", "minibatch"):
            found = f"dropout {dropout}, batch_rows {batch_rows}, lr {lr}, batching {batching!r}"
            raise UsageError("cannot train like this", where=found, expected="0 <= dropout < 1, the others positive")
        self.weights = weights.to(device)
        self.dropout = dropout
        self.seed = seed
        self.batching = batching
        self.batch_rows = batch_rows
        self._optimizer = Adam(self.weights.parameters(), lr=lr, weight_decay=weight_decay)
        self._mlp = MlpGradient(self.weights, dropout=dropout)
        self._feed = Feed(self.weights.device, block_rows, read_ahead=read_ahead, threads=threads)
        self.lane_sum = LaneSum()
        """Which lanes are computed here, and how they come together; ``ranks.RankLanes`` where processes share them."""
        self._earlier: SharedWeights | None = None

    def gradient(
        self,
        segments: Sequence[AnySegment],
        *,
        task_index: int = 0,
        epoch: int = 0,
        with_dropout: bool = True,
        squares: bool = False,
    ) -> float:
        """Leave the exact gradient of the whole loss in every weight's ``.grad``, and return the loss.

        With ``squares`` it is the sum over rows of each row's squared gradient; rows of a graph share theirs, so that
        is for rows by themselves only.
        """
        if squares and any(isinstance(segment, GraphSegment) for segment in segments):
            raise UsageError("rows of a graph have no gradients of their own", expected="rows by themselves")
        self._mlp.begin(squares=squares)
        parts = cut_parts(segments, self._feed, self.weights.widths)
        gradients = [tensor.grad for tensor in self.weights.parameters()]
        self.lane_sum.begin(gradients, parts)
        own = [part for part in parts if part.lane in self.lane_sum.lanes]
        read = read_parts(own, segments, self._feed, self.weights.widths)
        for lane, blocks in groupby(read, key=lambda found: found[0].lane):
            loss = self._no_loss()
            for part, x in blocks:
                segment, block = segments[part.segment], part.block
                generator = self._generator(task_index, epoch, part.segment, block.index) if with_dropout else None
                if isinstance(segment, GraphSegment):
                    loss += self._add_graph(segment, generator)
                else:
                    loss += self._mlp.add(x, segment, slice(block.start, block.stop), generator=generator)
            self._mlp.settle()
            self.lane_sum.close(lane, loss)
        return self.lane_sum.reduce()

    def run_epoch(
        self,
        segments: Sequence[AnySegment],
        *,
        task_index: int,
        epoch: int,
        penalty: Penalty | None = None,
        adjust: Adjust | None = None,
    ) -> EpochResult:
        """One pass over all rows: one step of the optimizer, or one for each batch.

        ``penalty`` is added to the loss of every step; its gradient is by autograd. ``adjust`` may then change the
        gradients, in ``.grad`` of the weights, before the step.

        Raises
        ------
        InvalidInputError
            The loss is not finite any more.
        """
        started = time.perf_counter()
        if self.batching == "full":
            loss = self.gradient(segments, task_index=task_index, epoch=epoch) + self._add_penalty(penalty)
            self._step(adjust)
        else:
            loss = self._run_batches(segments, task_index, epoch, penalty, adjust)
        if not math.isfinite(loss):
            raise InvalidInputError(
                f"the loss is {loss}",
                where=f"task {task_index}, epoch {epoch}",
                fix="use a smaller learn.lr, or scale the features (learn.scale)",
            )
        return EpochResult(loss, time.perf_counter() - started)

    def _run_batches(
        self,
        segments: Sequence[AnySegment],
        task_index: int,
        epoch: int,
        penalty: Penalty | None,
        adjust: Adjust | None,
    ) -> float:
        plain = [segment for segment in segments if isinstance(segment, Segment)]
        if len(plain) < len(segments):
            raise UsageError("a graph cannot be trained in mini-batches of rows", fix="use batching: full")
        ends = np.cumsum([0, *(segment.num_rows for segment in plain)])
        total = int(ends[-1])
        order = np.random.default_rng((self.seed, task_index, epoch)).permutation(total)
        loss, last_penalty = self._no_loss(), 0.0

        def read(batch: Block, _: int) -> list[tuple[int, NDArray[np.int64], NDArray[np.float32] | CsrBlock]]:
            chosen = np.sort(order[batch.start : batch.stop])
            cuts = np.searchsorted(chosen, ends)
            parts = []
            for index, segment in enumerate(plain):
                here = chosen[cuts[index] : cuts[index + 1]] - ends[index]
                if here.size:
                    parts.append((index, here, self._feed.take(segment.rows, self.weights.widths, here)))
            return parts

        for batch, parts in stream_blocks(split_blocks(total, self.batch_rows), read, ahead=1, threads=1):
            self._mlp.begin()
            # Scaled so that a batch's expected gradient is the full batch's.
            scale = total / batch.num_rows
            for index, here, rows in parts:
                generator = self._generator(task_index, epoch, index, batch.index)
                x = on_device(rows, self.weights.device)
                loss += self._mlp.add(x, plain[index], here, scale=scale, generator=generator)
            self._mlp.settle()
            last_penalty = self._add_penalty(penalty)
            self._step(adjust)
        return float(loss) + last_penalty

    def _step(self, adjust: Adjust | None) -> None:
        if adjust is not None:
            adjust()
        self._optimizer.step()

    def _add_graph(self, segment: GraphSegment, generator: torch.Generator | None) -> torch.Tensor:
        dropout = 0.0 if generator is None else self.dropout
        if isinstance(segment, BlockedGraphSegment) and not dropout:
            return segment.add_gradient(self.weights)
        logits = segment.logits(self.weights, dropout=dropout, generator=generator)
        terms = segment.terms(logits, slice(0, segment.num_rows))
        torch.autograd.backward([losses for losses, _ in terms], [coefficients for _, coefficients in terms])
        loss = self._no_loss()
        for losses, coefficients in terms:
            loss += weighted_sum(losses.detach(), coefficients)
        return loss

    def _no_loss(self) -> torch.Tensor:
        """Losses are added up where they are made, in float64, and fetched once."""
        return torch.zeros((), dtype=torch.float64, device=self.weights.device)

    def _add_penalty(self, penalty: Penalty | None) -> float:
        if penalty is None:
            return 0.0
        value = penalty(self.weights)
        if value.requires_grad:
            value.backward()
        return float(value.detach())

    def _generator(self, *seeds: int) -> torch.Generator | None:
        """Drawn from (seed, task, epoch, segment, block), so that a resumed run draws the same."""
        if not self.dropout:
            return None
        (state,) = np.random.SeedSequence((self.seed, *seeds)).generate_state(1, np.uint64)
        return torch.Generator(self.weights.device).manual_seed(int(state))

    def grow_head(self, num_classes: int) -> None:
        """Have outputs for so many classes: weights and moments of new ones are zero."""
        if num_classes <= self.weights.num_classes:
            return
        self.weights.grow(num_classes - self.weights.num_classes)
        self._optimizer.follow(self.weights.parameters())
        self.forget_buffers()

    def keep_weights(self) -> None:
        """Keep a copy of the weights as they are now; it is part of ``state()`` until it is forgotten."""
        self._earlier = self.weights.copy()

    def forget_kept_weights(self) -> None:
        """Let go of that copy."""
        self._earlier = None

    @property
    def kept_weights(self) -> SharedWeights:
        """That copy; the weights themselves where none is kept."""
        return self.weights if self._earlier is None else self._earlier

    def logits(self, rows: RowCache, *, weights: SharedWeights | None = None) -> NDArray[np.float32]:
        """MLP outputs of all rows, without dropout. Memory: the result and a block."""
        out = np.empty((rows.num_rows, self.weights.num_classes), np.float32)
        start = 0
        for block in self.stream_logits(rows, weights=weights):
            out[start : start + len(block)] = block
            start += len(block)
        return out

    def stream_logits(
        self, rows: RowCache, *, weights: SharedWeights | None = None, columns: Columns | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """MLP outputs block by block; by other ``weights`` for the same rows, or in some columns only."""
        used = self.weights if weights is None else weights
        for _, x in self._feed.blocks(rows, self.weights.widths):
            with torch.no_grad():
                yield used.mlp(x, columns=columns).cpu().numpy()

    def reset_optimizer(self) -> None:
        """Forget the moments, as at a new task with ``optimizer: reset``."""
        self._optimizer.reset()

    def forget_buffers(self) -> None:
        """Let go of what is used again from block to block: nobody trains for a while."""
        self._mlp.forget_buffers()
        self._feed.forget_buffers()
        self.lane_sum.forget_buffers()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of weights, moments and step, and the weights that are kept: all that a resumed run needs."""
        named = {"parameter": self.weights} | ({} if self._earlier is None else {EARLIER: self._earlier})
        state = {
            f"{name}.{i}": tensor.detach().clone()
            for name, weights in named.items()
            for i, tensor in enumerate(weights.parameters())
        }
        return {**state, **self._optimizer.state()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from ``state()`` of a model of the same widths; the weights stay the same tensors.

        Raises
        ------
        InvalidInputError
            A tensor is missing, or has another shape.
        """
        shapes = [tuple(tensor.shape) for tensor in self.weights.parameters()]
        found = [take_tensor(state, f"parameter.{i}", shape) for i, shape in enumerate(shapes)]
        earlier = [
            take_tensor(state, f"{EARLIER}.{i}", shape) for i, shape in enumerate(shapes) if f"{EARLIER}.0" in state
        ]
        self._optimizer.load_state(state)
        self.weights.take(found)
        self._earlier = self.weights.copy().take(earlier) if earlier else None
