"""What a run asks of its ranks. One process is a team as well, of one, for which nothing is to be done.

Words on the board, in the order in which they are left:

    hello/R    where rank R runs
    ready/R    what it will compute with, or why its plan does not fit; nothing has been written so far
    call/N     the state in which the first rank begins training, or a task's end, for the N-th time: the others follow
    left/R     how rank R ended before its time
    end        how the first rank ended: all others end too, with the same exit code
    bye/R      rank R needs the board no more, which ends with the first rank
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from ipaddress import ip_address

import torch
import torch.distributed as dist

from ecgl_scale._version import __version__
from ecgl_scale.base.events import EventSink, Note
from ecgl_scale.errors import EcglError, ExitCode, RankLostError, StopRequestedError, UsageError
from ecgl_scale.learn.lanes import LaneSum
from ecgl_scale.learn.ranks import RankLanes, Ranks
from ecgl_scale.session.ranks.board import ARRIVE_SECONDS, Board, Word
from ecgl_scale.session.ranks.children import Children
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.session.state import RunState

INTERFACE = "GLOO_SOCKET_IFNAME"
SILENT_SECONDS = 600.0
"""A rank that does not come to an exchange for so long is lost; one whose process ends is missed at once."""
BYE_SECONDS = 10.0
"""So long the first rank waits for those that others have started, before the board ends with it."""
EXPLAIN_SECONDS = 1.0
"""So long a rank may take to say why it has gone, or the system to say that its process has ended."""


class Team:
    """A process that computes everything itself."""

    rank = 0
    size = 1
    num_here = 1
    """How many ranks share the memory of this machine."""

    def make_lane_sum(self) -> LaneSum:
        """What adds up the lanes of the trainer."""
        return LaneSum()

    def device(self, name: str) -> str:
        """The device of this rank, where ``name`` is that of any."""
        return name

    def epoch_threads(self, threads: int) -> int:
        """How many of ``threads`` a rank may use while all ranks work."""
        return threads

    def wait_until_ready(self, setup: RunSetup, on_event: EventSink) -> None:
        """Wait for the other ranks, and refuse those that would not compute the same."""

    def call(self, state: RunState) -> None:
        """Let the other ranks follow, who read ``state`` in the run's directory."""

    def sharing(self) -> AbstractContextManager[None]:
        """Gradients inside are shared by all ranks."""
        return nullcontext()

    def end_epoch(self, weights: Sequence[torch.Tensor], *, where: str) -> None:
        """Agree with the other ranks after an epoch; ``is_stopping`` says whether all leave."""

    @property
    def is_stopping(self) -> bool:
        """Whether the ranks have agreed to leave after this epoch."""
        return False

    def stop(self) -> None:
        """Leave, as was agreed."""


class RankTeam(Team):
    """One of several ranks."""

    def __init__(self, board: Board, rank: int, size: int, children: Children | None = None) -> None:
        self.rank, self.size = rank, size
        self.board = board
        self._children = children
        self._ranks = Ranks(rank, size)
        self._lanes = RankLanes(self._ranks)
        self._num_calls = 0
        self._sharers = self._place_here = 0
        self._device_type = "cpu"

    # --- before anything is written

    def meet(self, device: str) -> None:
        """Wait until all ranks have come, and find out who shares this machine; ``device`` is that of all ranks."""
        cores = sorted(os.sched_getaffinity(0))
        own = {"host": socket.gethostname(), "cores": cores, "device": torch.device(device).type}
        self.board.put(f"hello/{self.rank}", own)
        found = [self._wait_for(f"hello/{rank}", rank) for rank in range(self.size)]
        here = [rank for rank, word in enumerate(found) if word["host"] == own["host"]]
        self.num_here, self._place_here = len(here), here.index(self.rank)
        self._sharers = sum(found[rank]["cores"] == cores for rank in here)
        self._device_type = own["device"]
        if len(here) < self.size and ip_address(self.board.address).is_loopback and not os.environ.get(INTERFACE):
            raise UsageError(
                f"rank {self.rank} reaches the first at {self.board.address}, where ranks on other machines do not",
                fix=f"export MASTER_ADDR as an address that all machines reach, or {INTERFACE} as their interface",
            )
        other = [rank for rank, word in enumerate(found) if word["device"] != own["device"]]
        if other:
            raise UsageError(
                f"rank {other[0]} has the device {found[other[0]]['device']}, rank {self.rank} {own['device']}",
                expected="all ranks on GPUs, or all on CPUs",
                fix="set learn.device=cpu",
            )

    def wait_until_ready(self, setup: RunSetup, on_event: EventSink) -> None:
        """Wait for the word of every rank that its plan fits; refuse one that would not compute the same."""
        own = describe(setup)
        hosts = [self._wait_for(f"hello/{rank}", rank)["host"] for rank in range(self.size)]
        for rank in range(1, self.size):
            word = self._wait_for(f"ready/{rank}", rank)
            if "refused" in word:
                raise error_of(f"rank {rank} on {hosts[rank]}: {word['refused']}", word["exit_code"])
            differing = [name for name in own if name != "processor" and word.get(name) != own[name]]
            if differing:
                shown = "; ".join(f"{name} {word.get(name)} instead of {own[name]}" for name in differing)
                raise UsageError(
                    f"rank {rank} on {hosts[rank]} would compute something else: {shown}",
                    expected="the same config, store and versions on every rank",
                )
            if word["processor"] != own["processor"]:
                on_event(
                    Note(
                        f"rank {rank} on {hosts[rank]} computes with {word['processor']}, the first with"
                        f" {own['processor']}: the last bits of results may differ from those of one process"
                    )
                )
        on_event(Note(f"{self.size} ranks share the training, on {', '.join(dict.fromkeys(hosts))}"))

    def _wait_for(self, name: str, rank: int) -> Word:
        try:
            word = self.board.wait(name, f"left/{rank}", seconds=ARRIVE_SECONDS, meanwhile=self._look_at_children)
        except TimeoutError:
            raise RankLostError(
                f"rank {rank} of {self.size} has not come within {ARRIVE_SECONDS:.0f} s",
                fix="start all ranks at once, and see that they reach the first one's machine",
            ) from None
        if "what" in word:
            raise error_of(word["what"], word["exit_code"])
        return word

    def _look_at_children(self) -> None:
        lost = self.lost_child()
        if lost is not None:
            raise RankLostError(lost)

    # --- training

    def make_lane_sum(self) -> LaneSum:
        """What adds up the lanes, inside ``sharing`` with the other ranks."""
        return self._lanes

    def device(self, name: str) -> str:
        """The GPU of this rank: those of a machine are given out in turn, unless the config names one."""
        return f"cuda:{self._place_here % torch.cuda.device_count()}" if name == "cuda" else name

    def epoch_threads(self, threads: int) -> int:
        """The share of this rank of cores that it does not have for itself."""
        return max(threads // self._sharers, 1)

    def call(self, state: RunState) -> None:
        """Let the other ranks follow."""
        self.board.put(f"call/{self._num_calls}", {"task": state.task, "step": state.step, "epoch": state.epoch})
        self._num_calls += 1
        self.connect()

    def wait_for_call(self) -> Word:
        """The next ``call``, or the ``end``, of the first rank."""
        word = self.board.wait(f"call/{self._num_calls}", "end")
        self._num_calls += 1
        return word

    def connect(self) -> None:
        """Connect to all ranks, once."""
        if self._ranks.are_connected:
            return
        store, device = dist.PrefixStore("group", self.board.store), torch.device(self.device(self._device_type))
        try:
            self._ranks.connect(store, device, address=self.board.address, silent_seconds=SILENT_SECONDS)
        except RankLostError as error:
            raise self.explain(error) from error

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Share gradients. A rank that is lost meanwhile is told of as it has told of itself."""
        try:
            with self._lanes.shared():
                yield
        except RankLostError as error:
            raise self.explain(error) from error

    def end_epoch(self, weights: Sequence[torch.Tensor], *, where: str) -> None:
        """Agree on weights, blocks and whether to stop."""
        self._lanes.end_epoch(weights, where=where)

    @property
    def is_stopping(self) -> bool:
        """Whether one of the ranks was asked to stop."""
        return self._lanes.stop_reason is not None

    def stop(self) -> None:
        """Leave by the signal that has come here, or by that of another rank."""
        self._lanes.stop()

    # --- the end

    def explain(self, error: RankLostError) -> EcglError | StopRequestedError:
        """What is known of a rank that was lost: its own word, or how its process ended."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        with suppress(RankLostError, TimeoutError):
            word = self.board.wait(
                *(f"left/{rank}" for rank in others), seconds=EXPLAIN_SECONDS, meanwhile=self._look_at_children
            )
            return error_of(word["what"], word["exit_code"])
        lost = self.lost_child()
        return error if lost is None else RankLostError(lost, fix=error.fix)

    def lost_child(self) -> str | None:
        """How a rank that we have started has ended, where one has."""
        return None if self._children is None else self._children.lost()

    def end(self, exit_code: int) -> None:
        """The end of the first rank: tell the others, and wait until they have heard it."""
        self._ranks.disconnect()
        if self._children is not None:
            self._children.expect_end()
        with suppress(RankLostError):
            self.board.put("end", {"exit_code": exit_code})
        if self._children is not None:
            self._children.end()
            return
        deadline = time.monotonic() + BYE_SECONDS
        with suppress(RankLostError, TimeoutError):
            for rank in range(1, self.size):
                self.board.wait(f"bye/{rank}", f"left/{rank}", seconds=deadline - time.monotonic())

    def leave(self, what: str, exit_code: int) -> bool:
        """The end of another rank before its time; returns whether the first rank can hear of it."""
        try:
            self.board.put(f"left/{self.rank}", {"what": f"rank {self.rank}: {what}", "exit_code": exit_code})
        except RankLostError:
            return False
        return True


def describe(setup: RunSetup) -> Word:
    """What two ranks must have in common; on another ``processor`` the last bits may differ."""
    return {
        "config": setup.config.digest()[:12],
        "store": setup.graph.short_identity,
        "split": setup.stream.split_hash[:12],
        "ecgl_scale": __version__,
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def error_of(what: str, exit_code: int) -> EcglError | StopRequestedError:
    """The error of another rank, as one of ours."""
    if exit_code in (ExitCode.STOPPED, ExitCode.INTERRUPTED):
        return RankLostError(what, fix="go on with the same command and --resume")
    error = EcglError(what)
    error.exit_code = next(code for code in ExitCode if code == exit_code)
    return error
