"""How much memory we may use, how much we do use, and what a stage will need.

"Our memory" is RssAnon + RssShmem: pages of read-only mapped files are the kernel's to take back.
The budget is ``--memory`` where given, else a share of the tightest limit around this process: cgroup v1 and v2
(all ancestors), rlimits, SLURM's variables, the machine's free memory.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.units import MIB, format_bytes, parse_bytes

SHARE_OF_LIMIT = 0.8
"""Without ``--memory`` we leave a fifth of the tightest limit to page cache and neighbours."""

_UNLIMITED_BYTES = 1 << 60
_MAX_ARENAS = -8
"""M_ARENA_MAX of malloc.h."""


@dataclass(frozen=True)
class MemoryLimit:
    """One limit that was found, and where."""

    limit_bytes: int
    origin: str


@dataclass(frozen=True)
class MemoryBudget:
    """What a job may use in all, its Python process included."""

    total_bytes: int
    origin: str
    option: str = "--memory"
    """What a user gives to have more."""

    @classmethod
    def of(cls, memory: str | int | None) -> MemoryBudget:
        """Take the user's size, or detect one."""
        if memory is not None:
            return cls(parse_bytes(memory), "--memory")
        tightest = tightest_limit()
        return cls(int(tightest.limit_bytes * SHARE_OF_LIMIT), f"{SHARE_OF_LIMIT:.0%} of {tightest.origin}")

    def require(self, needed_bytes: int, *, stage: str, formula: str) -> None:
        """Refuse before starting if ``needed_bytes`` do not fit."""
        if needed_bytes > self.total_bytes:
            raise DoesNotFitError(
                f"{stage} needs {format_bytes(needed_bytes)}, the budget is {format_bytes(self.total_bytes)}",
                where=f"budget from {self.origin}; need = {formula}",
                fix=f"give at least {self.option} {-(-needed_bytes // MIB)}MiB",
            )


def own_memory_bytes() -> int:
    """RssAnon + RssShmem of this process now."""
    total = 0
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def share_one_arena() -> None:
    """Let threads that start from now on take memory where the first one does, so that ``give_back_freed`` finds it.

    The GNU C library gives threads arenas of their own, and of each keeps up to 64 MiB that was freed at its end and
    that no call gives back: 70 MiB after the training of two task graphs by blocks of nodes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MAX_ARENAS, 1)


def give_back_freed() -> None:
    """Let the system have what allocators keep of memory that was freed: Arrow's, and the C library's where it can.

    Freed arrays below its threshold (up to 32 MiB) stay with the process otherwise, and so does what Arrow needed to
    write a table; both would count in every later stage.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class PeakSampler:
    """Samples ``own_memory_bytes`` every few milliseconds while it is entered; ``peak_bytes`` is the highest seen.

    It is the one thread of a process that looks at memory. Whoever wants to look at more, less often, is called by it:
    see ``call_every``.
    """

    def __init__(self, interval_seconds: float = 0.005) -> None:
        self.peak_bytes = 0
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-sampler", daemon=True)
        self._call: Callable[[], None] | None = None
        self._call_seconds = self._next_call = 0.0
        self._calling = threading.Lock()

    def call_every(self, seconds: float, call: Callable[[], None] | None) -> None:
        """Call ``call`` about every ``seconds`` from now on; None ends that, after a call that is under way."""
        with self._calling:
            self._call, self._call_seconds, self._next_call = call, seconds, time.monotonic()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.peak_bytes = max(self.peak_bytes, own_memory_bytes())
            with self._calling:
                if self._call is not None and time.monotonic() >= self._next_call:
                    self._next_call = time.monotonic() + self._call_seconds
                    self._call()

    def restart(self) -> int:
        """Return the peak so far and start a new one."""
        peak, self.peak_bytes = max(self.peak_bytes, own_memory_bytes()), own_memory_bytes()
        return peak

    def __enter__(self) -> PeakSampler:
        self.peak_bytes = own_memory_bytes()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak_bytes = max(self.peak_bytes, own_memory_bytes())


def tightest_limit() -> MemoryLimit:
    """The limit on this process's memory that it would meet first."""
    return min(find_limits(), key=lambda limit: limit.limit_bytes)


def find_limits(
    *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"), environment: Mapping[str, str] | None = None
) -> list[MemoryLimit]:
    """All limits on this process's memory; never empty, as the machine itself is one."""
    limits = list(_machine_limit(proc))
    limits += _cgroup_limits(proc / "self" / "cgroup", cgroups)
    limits += _rlimits()
    limits += _slurm_limits(os.environ if environment is None else environment)
    return limits or [MemoryLimit(_UNLIMITED_BYTES, "no limit found")]


def _machine_limit(proc: Path) -> Iterator[MemoryLimit]:
    for line in _read_text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield MemoryLimit(int(line.split()[1]) * 1024, "the machine's available memory")


def _cgroup_limits(membership: Path, cgroups: Path) -> Iterator[MemoryLimit]:
    # A line is "id:controllers:/path"; v2 has id 0 and no controllers. Any ancestor may hold the tightest limit.
    for line in _read_text(membership).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root, limit_file = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, limit_file = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for ancestor in (inside, *inside.parents):
            found = _read_text(root / ancestor / limit_file).strip()
            if found.isdigit() and int(found) < _UNLIMITED_BYTES:
                yield MemoryLimit(int(found), f"cgroup {root / ancestor / limit_file}")


def _rlimits() -> Iterator[MemoryLimit]:
    for name in ("RLIMIT_DATA", "RLIMIT_AS"):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if 0 <= soft < _UNLIMITED_BYTES:
            yield MemoryLimit(soft, name)


def _slurm_limits(environment: Mapping[str, str]) -> Iterator[MemoryLimit]:
    per_node = environment.get("SLURM_MEM_PER_NODE", "")
    if per_node.isdigit() and int(per_node) > 0:
        yield MemoryLimit(int(per_node) * MIB, "SLURM_MEM_PER_NODE")
    per_cpu = environment.get("SLURM_MEM_PER_CPU", "")
    cpus = environment.get("SLURM_CPUS_ON_NODE", "1")
    if per_cpu.isdigit() and int(per_cpu) > 0 and cpus.isdigit():
        yield MemoryLimit(int(per_cpu) * int(cpus) * MIB, "SLURM_MEM_PER_CPU")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
