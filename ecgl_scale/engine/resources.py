"""What a job may use: memory, threads, an executor, a directory to work in, and who hears of its progress.

It is made once, where a command, ``ECGL`` or a test begins, and handed down. So the limit on memory is read once: a
machine's free memory falls while we fill it, and a stage that looked again would refuse what the plan had room for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.engine.executor import Executor
from ecgl_scale.engine.local import LocalExecutor
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.errors import UsageError
from ecgl_scale.units import format_bytes


@dataclass(frozen=True)
class Resources:
    """What a job may use, the same for all of its stages."""

    budget: MemoryBudget
    """For the whole process, Python and libraries included."""
    threads: int
    on_event: EventSink = ignore_events
    executor: Executor = field(default_factory=LocalExecutor)
    work: Path | None = None
    """A directory for files that are needed while the job runs; every worker sees it."""

    @classmethod
    def of(
        cls,
        memory: str | int | None = None,
        threads: int | None = None,
        *,
        on_event: EventSink = ignore_events,
        executor: Executor | None = None,
        work: Path | None = None,
    ) -> Resources:
        """Resolve what a user gave, and find out what was not given: the tightest limit, the cores of this process."""
        if threads is not None and threads < 1:
            raise UsageError(f"{threads} threads", expected="at least one")
        return cls(MemoryBudget.of(memory), threads or available_cores(), on_event, executor or LocalExecutor(), work)

    @property
    def room_bytes(self) -> int:
        """What the budget leaves besides what the process holds now; never below 0."""
        return max(self.budget.total_bytes - own_memory_bytes(), 0)

    def require(self, needed_bytes: int, *, stage: str, formula: str) -> None:
        """Refuse a stage, before it starts, that needs more than is left of the budget."""
        held = own_memory_bytes()
        self.budget.require(held + needed_bytes, stage=stage, formula=f"{format_bytes(held)} held already + {formula}")

    def with_events(self, on_event: EventSink) -> Resources:
        """These resources with another listener."""
        return replace(self, on_event=on_event)

    def with_threads(self, threads: int) -> Resources:
        """These resources with another number of threads."""
        return replace(self, threads=threads)

    def with_work(self, work: Path) -> Resources:
        """These resources with another directory to work in."""
        return replace(self, work=work)

    def alone(self) -> Resources:
        """These resources for work that a block does by itself, with threads of this process."""
        return replace(self, executor=LocalExecutor())
