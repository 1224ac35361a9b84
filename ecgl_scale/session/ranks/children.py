"""Ranks that the first one starts itself, as processes of this machine.

None outlives the first rank: the kernel kills them with it (``cli.child``). When one ends before its time, the first
rank hears of it by a signal, wherever it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.session.ranks.board import LOOPBACK

LOOK_SECONDS = 0.2
END_SECONDS = 15.0
"""A child that has not ended so long after it was told to is killed; SLURM waits 30 s before it kills us."""


class Children:
    """The processes of all ranks but the first, from ``start`` to ``end``."""

    def __init__(self, processes: dict[int, subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._is_ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)

    @classmethod
    def start(cls, command: Sequence[str], size: int, port: int) -> Children:
        """Start a process for each rank from 1 on; ``command`` starts one."""
        processes: dict[int, subprocess.Popen[bytes]] = {}
        children = cls(processes)
        with uninterrupted():  # or nobody would know of a process
            for rank in range(1, size):
                # A session of its own: Ctrl-C reaches us alone, and we tell the others.
                processes[rank] = subprocess.Popen(
                    command,
                    env={**os.environ, **_environment(rank, size, port)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            children._watcher.start()
        return children

    def lost(self) -> str | None:
        """How a rank has ended before its time; None while all are there."""
        for rank, process in self._processes.items():
            code = process.poll()
            if code is not None and code < 0:
                return f"rank {rank} was killed by {signal.Signals(-code).name}"
            if code is not None:
                return f"rank {rank} has ended with exit code {code}"
        return None

    def expect_end(self) -> None:
        """Stop watching: from now on ranks may end."""
        self._is_ending.set()

    def end(self) -> None:
        """Wait for all, who know that it is over; kill who does not end."""
        self.expect_end()
        deadline = time.monotonic() + END_SECONDS
        with uninterrupted():
            for process in self._processes.values():
                try:
                    process.wait(max(deadline - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self._watcher.join()

    def _watch(self) -> None:
        while not self._is_ending.wait(LOOK_SECONDS):
            if self.lost() is not None:
                os.kill(os.getpid(), signal.SIGTERM)  # in training it is heard of between two lanes
                return


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What tells a child who it is, in torchrun's words; its peers are on the loopback interface."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
