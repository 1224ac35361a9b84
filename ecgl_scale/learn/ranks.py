"""Ranks: processes that share the lanes of an epoch, and have the weights of one process to the last bit.

Rank r of R computes the lanes from 16 r / R up to 16 (r + 1) / R and keeps each. Once a gradient they are exchanged:

    swap     rank q is given the q-th R-th part of the weights of every lane, and every lane's loss
    add      it adds up the lanes in lane order, in float64, and rounds once, as ``lanes`` says
    gather   all are given all parts

Each weight is added up once, in the order in which one process adds, whoever has computed a lane; so R changes no bit,
which a sum by all-reduce would. A step is then done by each rank for itself. After an epoch the ranks agree (one
all-reduce of a few numbers) on the crc32c of the weights and of how the blocks were cut, and on whether somebody was
asked to stop. Where lanes take seconds they look for a stop between two lanes too, all after the same number of lanes.

Bytes a rank sends an epoch: at most ``4 P (16 / R + 1)`` of P weights. Memory: see ``exchange_bytes``.
Neither gloo nor nccl encrypts, or asks who is there: ranks belong on a network that is trusted.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from ecgl_kernels.lanes import add_lane, end_sum, start_sum
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.errors import EcglError, RankLostError
from ecgl_scale.learn.lanes import NUM_LANES, LaneSum, Part, pass_here, used_lanes
from ecgl_scale.units import format_bytes

SECONDS_BETWEEN_LOOKS = 10.0
"""So much work of a lane, or several, lies between two looks for a stop."""
LOSS_FLOATS = 2
"""A lane's loss, a float64, travels beside its gradient in the place of two float32."""


def lanes_of(rank: int, size: int) -> range:
    """The lanes of a rank: runs that are as even as they can be."""
    return range(rank * NUM_LANES // size, (rank + 1) * NUM_LANES // size)


def exchange_bytes(num_weights: int, size: int) -> int:
    """Memory of the exchange besides the gradient: none for one process.

    ``4 P (16 / R kept + 16 / R received + 2 for the gathered gradient) + 8 P / R``, 16 / R rounded up.
    """
    if size == 1:
        return 0
    own = -(-NUM_LANES // size)
    return 4 * num_weights * (2 * own + 2) + 8 * -(-num_weights // size)


def formula_of_exchange(num_weights: int, size: int) -> str:
    """The part of an epoch's formula that ranks add to it."""
    exchange = format_bytes(exchange_bytes(num_weights, size))
    return f" + {exchange} for lanes of {size} ranks" if size > 1 else ""


class Ranks:
    """What ranks do together, once they are connected: every call is made by all of them, in one order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._group: Any = None
        self._device = torch.device("cpu")

    @property
    def are_connected(self) -> bool:
        """Whether anything can be sent."""
        return self._group is not None

    def connect(self, store: dist.Store, device: torch.device, *, address: str, silent_seconds: float) -> None:
        """Connect to all other ranks, who do the same: by nccl where weights are on a GPU, else by gloo.

        gloo listens at ``address`` of this machine, unless GLOO_SOCKET_IFNAME names an interface.
        """
        timeout, interface = timedelta(seconds=silent_seconds), os.environ.get("GLOO_SOCKET_IFNAME", "")
        with _lost_rank():
            if device.type == "cuda":  # nccl sends from GPUs only
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timeout
                torch.cuda.set_device(device)
                self._group, self._device = dist.ProcessGroupNCCL(store, self.rank, self.size, options), device
            else:
                where = {"interface": interface} if interface else {"hostname": address}
                options = dist.ProcessGroupGloo._Options()
                options._devices, options._timeout = [dist.ProcessGroupGloo.create_device(**where)], timeout
                self._group = dist.ProcessGroupGloo(store, self.rank, self.size, options)

    def disconnect(self) -> None:
        """Close all connections, so that nobody waits for us in an exchange."""
        self._group = None

    def swap(self, received: torch.Tensor, counts: list[int], sent: torch.Tensor) -> None:
        """Give every rank its equal part of ``sent``; ``received`` has ``counts`` numbers of each rank."""
        with _lost_rank():
            each = [sent.numel() // self.size] * self.size
            self._group.alltoall_base(received.view(-1), sent.view(-1), counts, each).wait()

    def gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Put the parts of all ranks, ``own`` among them, side by side."""
        with _lost_rank():
            self._group.allgather([list(whole.view(self.size, -1))], [own]).wait()

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of all ranks, number by number."""
        with _lost_rank():
            found = torch.tensor(numbers, dtype=torch.int64, device=self._device)
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.MAX
            self._group.allreduce([found], options).wait()
            return [int(number) for number in found.tolist()]


@contextmanager
def _lost_rank() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # all that torch says of a peer that is gone, or too slow
        told = str(error).partition(". ")[0].rpartition("] ")[2]  # without its file, and its advice
        raise RankLostError(f"another rank was lost: {told}", fix="go on with the same command and --resume") from error


@dataclass(frozen=True)
class _Piece:
    """A run of weights of one tensor that goes to one rank."""

    tensor: int
    start: int
    stop: int
    rank: int
    place: int


class RankLanes(LaneSum):
    """Adds up lanes with other ranks while ``is_shared``; else alone, all lanes, as ``LaneSum``."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        self.is_shared = False
        self.stop_reason: str | None = None
        """Why all ranks stop after this epoch."""
        self._arrived: list[int] = []
        self._held: list[int] = []
        self._own: list[int] = []
        self._flat: list[torch.Tensor] = []
        self._pieces: list[_Piece] = []
        self._buffers: dict[str, torch.Tensor] = {}
        self._cut = 0
        self._lanes_between = 1
        self._num_closed = self._num_looks = 0
        self._longest_seconds = self._lane_began = 0.0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share gradients with the other ranks, all of which do the same; requests to stop wait for a look."""
        with uninterrupted() as arrived:
            self.is_shared, self._arrived, self.lanes = True, arrived, lanes_of(self.ranks.rank, self.ranks.size)
            try:
                yield
            finally:
                if self.stop_reason is not None:  # there is something to save first: see ``stop``
                    self._held = arrived.copy()
                    arrived.clear()
                self.is_shared, self._arrived, self.lanes = False, [], range(NUM_LANES)

    def stop(self) -> NoReturn:
        """Leave after an epoch, as all ranks have agreed to: by the signal that came here, or by another rank's."""
        for number in self._held:
            signal.raise_signal(number)
        raise RankLostError(self.stop_reason or "nobody was asked to stop")

    def begin(self, gradients: Sequence[torch.Tensor], parts: Sequence[Part]) -> None:
        """Begin a sum: each own lane will be kept."""
        if not self.is_shared:
            super().begin(gradients, parts)
            return
        self._gradients, self._used = list(gradients), used_lanes(parts)
        self._own = [lane for lane in self._used if lane in self.lanes]
        cut = [(part.lane, part.segment, part.block.start, part.block.stop) for part in parts]
        self._cut = crc32c_of(np.array(cut, np.int64).reshape(-1), self._cut)
        self._flat = [_in_memory_order(gradient) for gradient in gradients]
        sizes = [flat.numel() for flat in self._flat]
        self._pieces = _cut_pieces(sizes, self._width(sizes), self.ranks.size)
        self._num_closed = self._num_looks = 0
        self._lane_began = time.monotonic()

    def close(self, lane: int, loss: torch.Tensor) -> None:
        """Keep ``lane``, which the gradients hold, and its loss; afterwards they are zero."""
        if not self.is_shared:
            super().close(lane, loss)
            return
        width, sent = self._width(), self._sent()
        row = self._own.index(lane)
        for piece in self._pieces:
            place = slice(piece.place, piece.place + piece.stop - piece.start)
            sent[piece.rank, row, place].copy_(self._flat[piece.tensor][piece.start : piece.stop])
        sent[:, row, width:].view(torch.float64).copy_(loss)
        for gradient in self._gradients:
            gradient.zero_()
        self._longest_seconds = max(self._longest_seconds, time.monotonic() - self._lane_began)
        self._num_closed += 1
        self._look_up_to(self._num_closed)
        self._lane_began = time.monotonic()

    def reduce(self) -> float:
        """Exchange lanes: make the gradients the sum of all, and return the sum of all losses."""
        if not self.is_shared:
            return super().reduce()
        size, width = self.ranks.size, self._width()
        counts = [sum(lane in lanes_of(rank, size) for lane in self._used) for rank in range(size)]
        self._look_up_to(max(counts))
        if not self._used:
            return 0.0
        received = self._take("received", len(self._used), width + LOSS_FLOATS)
        self.ranks.swap(received, [count * received.shape[1] for count in counts], self._sent())
        losses: list[float] = received[:, width:].view(torch.float64)[:, 0].tolist()
        whole = self._take("whole", size, width)
        self.ranks.gather(whole, self._add_up(received[:, :width]))
        for piece in self._pieces:
            found = whole[piece.rank, piece.place : piece.place + piece.stop - piece.start]
            self._flat[piece.tensor][piece.start : piece.stop].copy_(found)
        return list(accumulate(losses))[-1]

    def end_epoch(self, weights: Sequence[torch.Tensor], *, where: str) -> None:
        """Agree on the weights, on the blocks that were summed and on whether to stop, after the step of an epoch.

        Raises
        ------
        EcglError
            Two ranks have other weights, or have cut other blocks: a bug of ours, or broken memory.
        """
        crc = 0
        for tensor in weights:
            crc = crc32c_of(_in_memory_order(tensor).cpu().numpy(), crc)
        milliseconds = int(1000 * self._longest_seconds) + 1
        own = [self._stop_number(), milliseconds, crc, -crc, self._cut, -self._cut]
        stop, longest, *rest = self.ranks.largest(own)
        if rest[0] != -rest[1] or rest[2] != -rest[3]:
            raise self._disagreement("weights" if rest[0] != -rest[1] else "blocks", [crc, self._cut], where)
        self._cut, self._longest_seconds = 0, 0.0
        self._lanes_between = max(int(1000 * SECONDS_BETWEEN_LOOKS) // longest, 1)
        self.stop_reason = self._reason(stop)

    def forget_buffers(self) -> None:
        """Give back the memory of the exchange."""
        super().forget_buffers()
        self._buffers, self._flat = {}, []

    def _add_up(self, lanes: torch.Tensor) -> torch.Tensor:
        """The sum of the rows in order, which the last row becomes."""
        if len(lanes) == 1:
            return lanes[0]
        total = self._take("total", lanes.shape[1], dtype=torch.float64)
        if lanes.device.type == "cpu":
            kernels = [start_sum, *[add_lane] * (len(lanes) - 2), end_sum]
            for kernel, lane in zip(kernels, lanes, strict=True):
                pass_here(kernel, total.numpy(), lane.numpy())
        else:
            total.copy_(lanes[0])
            for lane in lanes[1:]:
                total.add_(lane)
            lanes[-1].copy_(total)
        return lanes[-1]

    def _look_up_to(self, num_lanes: int) -> None:
        """Look for a stop as often as is due after so many lanes; every rank looks as often as the busiest has to."""
        while (self._num_looks + 1) * self._lanes_between <= num_lanes:
            self._num_looks += 1
            reason = self._reason(self.ranks.largest([self._stop_number()])[0])
            if reason is not None:
                raise RankLostError(reason)

    def _stop_number(self) -> int:
        """What tells that this rank was asked to stop, and which it is, once the largest is taken."""
        return self.ranks.size - self.ranks.rank if self._arrived else 0

    def _reason(self, stop_number: int) -> str | None:
        return f"rank {self.ranks.size - stop_number} was asked to stop" if stop_number else None

    def _disagreement(self, what: str, own: list[int], where: str) -> EcglError:
        """Say which ranks differ from most."""
        marks = [0] * (2 * self.ranks.size)
        marks[2 * self.ranks.rank : 2 * self.ranks.rank + 2] = own
        found = self.ranks.largest(marks)[0 if what == "weights" else 1 :: 2]
        usual = max(found, key=found.count)
        shown = ", ".join(f"rank {rank} has {crc:08x}" for rank, crc in enumerate(found) if crc != usual)
        return EcglError(
            f"the {what} of the ranks differ: {shown}, the others {usual:08x}",
            where=where,
            expected="the same bits on every rank, on machines with the same processors and libraries",
            fix="go on with --resume: no such weights were saved; if it happens again, test the memory of the machine",
        )

    def _width(self, sizes: Sequence[int] | None = None) -> int:
        """Numbers of a rank's part of a lane: an even number, so that the loss behind it lies as a float64 must."""
        total = sum(flat.numel() for flat in self._flat) if sizes is None else sum(sizes)
        return -(-total // (2 * self.ranks.size)) * 2

    def _sent(self) -> torch.Tensor:
        return self._take("sent", self.ranks.size, len(self._own), self._width() + LOSS_FLOATS)

    def _take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory that is kept from one sum to the next."""
        held = self._buffers.get(name)
        if held is None or held.shape != shape:
            self._buffers.pop(name, None)
            held = self._buffers[name] = torch.zeros(shape, dtype=dtype, device=self._flat[0].device)
        return held


def _cut_pieces(sizes: Sequence[int], width: int, num_ranks: int) -> list[_Piece]:
    """Cut tensors, laid side by side, every ``width`` numbers."""
    pieces, first = [], 0
    for tensor, size in enumerate(sizes):
        for rank in range(num_ranks):
            start, stop = max(rank * width - first, 0), min((rank + 1) * width - first, size)
            if start < stop:
                pieces.append(_Piece(tensor, start, stop, rank, first + start - rank * width))
        first += size
    return pieces


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """All numbers of a matrix that lies by rows or by columns, as one vector; no copy."""
    by_rows = tensor.detach() if tensor.is_contiguous() else tensor.detach().t()
    return by_rows.view(-1)
