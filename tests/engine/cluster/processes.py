"""A cluster of real processes, as a user starts them: ``ecgl scheduler``, ``ecgl worker``; and what is left of one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.warm.process import WarmProcess

ROOT = Path(__file__).parents[3]
END_SECONDS = 30.0
LISTENING = "0A"
LOOPBACK = "0100007F"
"""127.0.0.1 as the kernel writes it."""


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it is so before the time is over."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start(*arguments: object, environment: Mapping[str, str] | None = None) -> WarmProcess:
    """Start ``ecgl`` in a process group of its own."""
    return WarmProcess(*arguments, environment=environment, directory=ROOT, is_leader=True)


def end(process: WarmProcess) -> tuple[int | None, str]:
    """End it as a batch system does, with everything below it; returns its code and what it said."""
    if process.poll() is None:
        process.terminate()
    try:
        _, said = process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
    return process.returncode, said


def group_is_gone(leader: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    states = [
        path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()
    ]
    return not [fields for fields in states if int(fields[2]) == leader and fields[0] != "Z"]


def listens_at(leader: int) -> set[str]:
    """Addresses and ports, as the kernel writes them, at which processes of a group wait for others."""
    own = set[str]()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.getpgid(int(path.name)) == leader:
                own |= {str(file.readlink()) for file in (path / "fd").iterdir()}
    found = set[str]()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                found.add(fields[1])
    return found


@dataclass
class Processes:
    """A scheduler and its workers."""

    file: Path
    options: Sequence[object] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: list[WarmProcess] = field(default_factory=list)

    def start_scheduler(self, *options: object) -> WarmProcess:
        """Start it, and wait until it says where it listens."""
        self.file.unlink(missing_ok=True)
        scheduler = start("scheduler", self.file, *self.options, *options, environment=self.environment)
        assert wait_until(lambda: self.file.exists() or scheduler.poll() is not None)
        assert scheduler.poll() is None, end(scheduler)[1]
        return scheduler

    def start_worker(self) -> WarmProcess:
        """Start one; it joins when it can."""
        worker = start(
            "worker", self.file, "--memory", "1GiB", "--threads", 1, *self.options,
            environment=self.environment,
        )  # fmt: skip
        self.workers.append(worker)
        return worker


@contextmanager
def processes(
    directory: Path, num_workers: int, *options: object, environment: Mapping[str, str] | None = None
) -> Iterator[Processes]:
    """A scheduler and so many workers, until the end of the ``with``."""
    cluster = Processes(directory / "scheduler.json", options, environment or {})
    with ExitStack() as stack:
        stack.callback(end, cluster.start_scheduler())
        stack.callback(lambda: [end(worker) for worker in cluster.workers])
        for _ in range(num_workers):
            cluster.start_worker()
        yield cluster
