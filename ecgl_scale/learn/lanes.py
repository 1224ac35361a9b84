"""Lanes: fixed runs of blocks whose gradients are summed one by one, so that any number of processes gives one result.

    lane_l    = sum over its blocks, in order, from zero                          float32, as blocks are added up
    gradient  = float32(lane_a + lane_b + ... )   the lanes that have blocks, in lane order, in float64, rounded once

Sums of float32 depend on their order. Were a gradient one sum over all blocks, two processes with half of the blocks
each would round otherwise than one; so everybody sums by lanes, also a single process, and whoever has computed a lane
has the same bits. Losses are float64 within lanes, and are added in the same order; squares (Fisher, MAS) are as well.

Cut: blocks stay in order, and a lane is a run of them. A row counts 1, a dense one ``DENSE_ROW_WORK``; all rows are
W together, and are cut into ``n = min(16, W // LEAST_LANE_WORK, at least 1)`` shares of W / n. A block, which is never
divided, belongs to the share where its middle lies. So a lane, and any run of lanes, which is what a process will be
given, has its due up to a block, however many segments there are and however small their last blocks are. Shares take
lanes that are evenly far apart. Nothing but the segments and their blocks decides: neither threads, nor processes.

Cost: a lane is a pass of 16 to 24 bytes a weight (``ecgl_kernels.lanes``), none where there is one lane only, as in
small tasks: then the gradient is what the blocks have added up, as if there were no lanes.
Memory: 8 bytes a weight. The lane itself is ``.grad`` of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_kernels.lanes import add_lane, end_sum, start_sum
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.threads import run_parts
from ecgl_scale.learn.adam import in_memory_order
from ecgl_scale.learn.feed import Feed
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.loss import Segment
from ecgl_scale.learn.model import Rows

Pass = Callable[[NDArray[np.float64], NDArray[np.float32]], None]

NUM_LANES = 16
"""At most so many processes can share an epoch. A constant: results depend on it, to the last bits."""
DENSE_ROW_WORK = 32
"""A dense row is multiplied with all of the first weight, a sparse one with few rows of it: 90 us against 3.3 were
measured for 8,710 columns, 60 of them filled."""
LEAST_LANE_WORK = 32768
"""A lane has about 1,024 dense or 32,768 sparse rows at least, so that its pass over the weights is little beside their
products: with lanes as small as that an epoch took 1 to 2 % longer, of 40 thousand, 1 and 2.2 million weights; with
8,192 sparse rows 3 %. Results depend on it as well."""
SERIAL_WEIGHTS = 1 << 20
"""Fewer weights (a tenth of a millisecond to two) are one thread's work: threads would have to be started."""
LANE_SUM_BYTES = 8
"""Bytes of a weight in the sum of lanes, which is float64."""


@dataclass(frozen=True)
class Part:
    """A block of a segment, and the lane it belongs to."""

    lane: int
    segment: int
    block: Block


def cut_lanes(works: Sequence[int]) -> list[int]:
    """The lane of every block, from how much work each of them is."""
    total = max(sum(works), 1)
    num_shares = min(NUM_LANES, max(total // LEAST_LANE_WORK, 1))
    lanes, before = [], 0
    for work in works:
        share = min((2 * before + work) * num_shares // (2 * total), num_shares - 1)
        lanes.append((2 * share + 1) * NUM_LANES // (2 * num_shares))
        before += work
    return lanes


def cut_parts(segments: Sequence[Segment | GraphSegment], feed: Feed, widths: Sequence[int]) -> list[Part]:
    """All blocks of all segments, in order. A graph is a single one, as its rows need each other."""
    blocks: list[tuple[int, Block]] = []
    works: list[int] = []
    for index, segment in enumerate(segments):
        rows = segment.rows
        own = [Block(0, 0, rows.num_rows)] if isinstance(segment, GraphSegment) else feed.split(rows, widths)
        row_work = 1 if feed.gives_sparse(rows, widths) else DENSE_ROW_WORK
        blocks += [(index, block) for block in own]
        works += [row_work * block.num_rows for block in own]
    return [Part(lane, index, block) for lane, (index, block) in zip(cut_lanes(works), blocks, strict=True)]


def read_parts(
    parts: Sequence[Part], segments: Sequence[Segment | GraphSegment], feed: Feed, widths: Sequence[int]
) -> Iterator[tuple[Part, Rows | None]]:
    """The parts in order, those of rows by themselves with their rows, read ahead also from one lane to the next."""
    for index, found in groupby(parts, key=lambda part: part.segment):
        own, segment = list(found), segments[index]
        if isinstance(segment, GraphSegment):
            yield from ((part, None) for part in own)
        else:
            stream = feed.blocks(segment.rows, widths, wanted=[part.block for part in own])
            yield from ((part, x) for part, (_, x) in zip(own, stream, strict=True))


class LaneSum:
    """Adds up lanes, one after the other, in ``.grad`` of the weights: ``begin``, each lane and ``close``, ``reduce``.

    This one belongs to a process that computes all lanes. Where several share them (``ranks``), each has its own
    ``lanes``, keeps them at ``close``, and exchanges them in ``reduce``, after which all have the whole gradient.
    """

    lanes: Sequence[int] = range(NUM_LANES)
    """The lanes that this process computes."""

    def __init__(self) -> None:
        self._totals: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []
        self._here: list[tuple[NDArray[np.float64], NDArray[np.float32]]] = []
        self._used: list[int] = []
        self._loss: torch.Tensor | None = None

    def begin(self, gradients: Sequence[torch.Tensor], parts: Sequence[Part]) -> None:
        """Begin a sum: ``gradients`` are zero and will hold lane after lane; ``parts`` are the blocks of all lanes."""
        self._gradients, self._used, self._loss = list(gradients), used_lanes(parts), None
        if len(self._used) < 2:
            return
        if not self._totals:
            self._totals = [torch.empty_like(gradient, dtype=torch.float64) for gradient in gradients]
        pairs = list(zip(self._totals, self._gradients, strict=True))
        is_here = gradients[0].device.type == "cpu"
        self._here = [(in_memory_order(total), in_memory_order(lane)) for total, lane in pairs] if is_here else []

    def close(self, lane: int, loss: torch.Tensor) -> None:
        """Add ``lane``, which the gradients hold, and its loss; afterwards they are zero, or the sum of all lanes."""
        self._loss = loss if self._loss is None else self._loss + loss
        if len(self._used) == 1:
            return
        if lane == self._used[0]:
            self._pass(start_sum, _start_there)
        elif lane == self._used[-1]:
            self._pass(end_sum, _end_there)
        else:
            self._pass(add_lane, _add_there)

    def reduce(self) -> float:
        """Make the gradients the sum of all lanes, and return the sum of their losses."""
        return 0.0 if self._loss is None else float(self._loss)

    def forget_buffers(self) -> None:
        """Give back the memory of the sum in float64."""
        self._totals, self._gradients, self._here = [], [], []

    def _pass(self, kernel: Pass, operation: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        """Pass over all weights: with our kernel on the CPU, else by tensor operations."""
        for total, lane in self._here:
            pass_here(kernel, total, lane)
        if not self._here:
            for on_device in zip(self._totals, self._gradients, strict=True):
                operation(*on_device)


def used_lanes(parts: Sequence[Part]) -> list[int]:
    """The lanes that have blocks, in order."""
    return list(dict.fromkeys(part.lane for part in parts))


def pass_here(kernel: Pass, total: NDArray[np.float64], lane: NDArray[np.float32]) -> None:
    """Pass over arrays in memory with a kernel, in threads where they are long."""
    if lane.size < SERIAL_WEIGHTS:
        kernel(total, lane)
    else:
        cuts = np.linspace(0, lane.size, torch.get_num_threads() + 1).astype(int).tolist()
        run_parts(partial(_pass_part, kernel, total, lane), cuts)


def _pass_part(kernel: Pass, total: NDArray[np.float64], lane: NDArray[np.float32], first: int, stop: int) -> None:
    kernel(total[first:stop], lane[first:stop])


def _start_there(total: torch.Tensor, lane: torch.Tensor) -> None:
    total.copy_(lane)
    lane.zero_()


def _add_there(total: torch.Tensor, lane: torch.Tensor) -> None:
    total.add_(lane)
    lane.zero_()


def _end_there(total: torch.Tensor, lane: torch.Tensor) -> None:
    lane.copy_(total.add_(lane))
