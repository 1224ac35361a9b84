"""A board where ranks leave short words for each other, as JSON by name: torch's store, at the first rank.

Nobody waits inside the store: a process that waits looks again and again, and so hears signals, and of a rank's end.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ecgl_scale.errors import RankLostError
from ecgl_scale.session.ranks.launch import Launch

Word = dict[str, Any]

LOOPBACK = "127.0.0.1"
ARRIVE_SECONDS = 300.0
"""So long may ranks of a job come one after the other."""
FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.002, 0.1


class Board:
    """Words by name. Every rank has one."""

    def __init__(self, store: dist.Store, port: int, address: str) -> None:
        self.store = store
        self.port = port
        self.address = address
        """The address of this machine from which the board is reached, and where others reach us."""

    @classmethod
    def listen(cls) -> Board:
        """A board for processes of this machine, at a free port of the loopback interface."""
        listening = socket.create_server((LOOPBACK, 0))
        port = listening.getsockname()[1]
        store = dist.TCPStore(
            LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return cls(dist.PrefixStore(_prefix("0"), store), port, LOOPBACK)

    @classmethod
    def join(cls, launch: Launch) -> Board:
        """The board of ranks that a launcher has started; the first rank makes it, unless the launcher has one."""
        with _lost_board():
            store = dist.TCPStore(
                launch.host,
                launch.port,
                is_master=launch.rank == 0 and not launch.has_store,
                wait_for_workers=False,
                timeout=timedelta(seconds=ARRIVE_SECONDS),
            )
        return cls(dist.PrefixStore(_prefix(launch.attempt), store), launch.port, _own_address(launch))

    def put(self, name: str, word: Word) -> None:
        """Leave a word."""
        with _lost_board():
            self.store.set(name, json.dumps(word))

    def find(self, name: str) -> Word | None:
        """The word of this name; None where there is none yet."""
        with _lost_board():
            if not self.store.check([name]):
                return None
            found: Word = json.loads(self.store.get(name))
            return found

    def wait(self, *names: str, seconds: float | None = None, meanwhile: Callable[[], None] | None = None) -> Word:
        """The first word under one of ``names``, however long it takes, or a ``TimeoutError`` after ``seconds``."""
        began, pause = time.monotonic(), FIRST_LOOK_SECONDS
        while True:
            for name in names:
                found = self.find(name)
                if found is not None:
                    return found
            if seconds is not None and time.monotonic() - began > seconds:
                raise TimeoutError(", ".join(names))
            if meanwhile is not None:
                meanwhile()
            time.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS)


def _own_address(launch: Launch) -> str:
    """The address of this machine on the way to the first rank; nothing is sent."""
    family, kind, number, _, target = socket.getaddrinfo(launch.host, launch.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, number) as way:
        way.connect(target)
        return str(way.getsockname()[0])


def _prefix(attempt: str) -> str:
    """Words of an earlier start must not be found in a launcher's store."""
    return f"ecgl-{attempt}"


@contextmanager
def _lost_board() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one
        raise RankLostError(
            f"the first rank cannot be reached: {str(error).splitlines()[0]}",
            fix="go on with the same command and --resume",
        ) from error
