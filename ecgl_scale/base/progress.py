"""How far a job is, from its events: amount, rate, time left, memory against the plan; as values and as plain lines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ecgl_scale.base.events import (
    BlockFinished,
    EpochFinished,
    Event,
    Note,
    StageFinished,
    StageStarted,
    StepStarted,
    TaskFinished,
    TaskStarted,
    WorkerReported,
)
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.units import format_bytes, format_count, format_seconds

LINE_EVERY_SECONDS = 30.0
SLOW_RATE = 0.5
"""Units a second below which one rather says how long each takes."""


@dataclass(frozen=True)
class Progress:
    """How far one stage is."""

    stage: str
    unit: str
    done: int
    total: int | None
    rate: float | None
    """Units a second, where enough has been done to tell."""
    num_workers: int = 0
    """Workers of a cluster that have done some of it; 0 where this process does it alone."""

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rest takes at the rate so far; None where that is not known."""
        if self.total is None or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    @property
    def amount(self) -> str:
        """What has been done, as text: ``120 of 200 epochs``."""
        if self.unit == "bytes":
            of_all = "" if self.total is None else f" of {format_bytes(self.total)}"
            return f"{format_bytes(self.done)}{of_all}"
        of_all = "" if self.total is None else f" of {format_count(self.total)}"
        return f"{format_count(self.done)}{of_all} {self.unit}"

    @property
    def speed(self) -> str:
        """The rate as text: ``13.2/s``, or ``15.2 s each`` where units take long; empty where it is not known."""
        if self.rate is None:
            return ""
        if self.unit == "bytes":
            return f"{format_bytes(self.rate)}/s"
        if self.rate < SLOW_RATE:
            return f"{format_seconds(1 / self.rate)} each"
        return f"{self.rate:,.0f}/s" if self.rate >= 100 else f"{self.rate:.3g}/s"

    @property
    def by_whom(self) -> str:
        """Who does it, as text: ``2 workers``; empty where this process does it alone."""
        return f"{self.num_workers} worker{'s' * (self.num_workers > 1)}" if self.num_workers else ""

    @property
    def time_left(self) -> str:
        """The time left as text: ``40.0 s left``; empty where it is not known."""
        return "" if self.seconds_left is None else format_left(self.seconds_left)


@dataclass
class _RunningStage:
    """A stage that has begun; its rate is counted from ``since``, when ``done_before`` units were done."""

    started: StageStarted
    since: float
    done_before: int = 0
    is_silent: bool = True
    """Whether it has not said yet how much is done."""


class ProgressTracker:
    """Follows the events of a job; not thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.step = ""
        self.planned_bytes = 0
        """What the plan says of the last step that has begun; 0 where there is no plan."""
        self.task = ""
        """``task 2 of 5``; empty outside of tasks."""
        self._now = now
        self._stages: dict[str, _RunningStage] = {}
        self._current = ""
        self._workers: set[str] = set()

    def follow(self, event: Event) -> Progress | None:
        """Take in an event; returns how far its stage is, where the event tells that."""
        if isinstance(event, TaskStarted):
            self.task = f"task {event.task + 1} of {event.num_tasks}"
        elif isinstance(event, StepStarted):
            self.step, self.planned_bytes = event.step, event.planned_bytes
        elif isinstance(event, StageStarted):
            self._stages[event.stage] = _RunningStage(event, self._now())
            self._current = event.stage
            self._workers.clear()
        elif isinstance(event, WorkerReported):
            self._workers.add(event.worker)
        elif isinstance(event, BlockFinished):
            return self._progress_at(event.stage, event.done)
        elif isinstance(event, EpochFinished):
            return self._progress_at(self._current, event.epoch + 1)
        return None

    def name_of(self, stage: str) -> str:
        """The name to show: ``train task 0`` is the step ``train``; its task is shown beside it, from 1 on."""
        return self.step if self.step and stage.startswith(self.step) else stage

    def knows(self, stage: str) -> bool:
        """Whether the stage, or a step of this name, has been started."""
        return stage in self._stages or stage == self.step

    def _progress_at(self, stage: str, done: int) -> Progress | None:
        running = self._stages.get(stage)
        if running is None:
            return None
        seconds = self._now() - running.since
        rate = (done - running.done_before) / seconds if seconds > 0 and done > running.done_before else None
        if running.is_silent:  # a resumed stage begins with what was done before: count from its first sign of life
            running.is_silent, running.since, running.done_before = False, self._now(), done
        return Progress(stage, running.started.unit, done, running.started.total, rate, len(self._workers))


def format_memory(num_bytes: int, planned_bytes: int) -> str:
    """Memory as text: ``212 MiB of 260 MiB planned``; without the plan where there is none."""
    return format_bytes(num_bytes) + (f" of {format_bytes(planned_bytes)} planned" if planned_bytes else "")


def format_left(seconds: float) -> str:
    """Time left as text: ``40 s left``; what is below a second changes too quickly to be read."""
    return f"{format_seconds(seconds)} left" if seconds >= 1 else "< 1 s left"


def format_accuracy(event: TaskFinished) -> str:
    """The average accuracy after a task as text: ``AA 80.1``, and on all that was seen: ``AA 80.1, seen 71.2``."""
    scopes = {"AA": event.accuracies, "seen": event.accuracies_seen}
    known = {name: [value for value in row if not math.isnan(value)] for name, row in scopes.items()}
    return ", ".join(f"{name} {sum(row) / len(row):.1f}" for name, row in known.items() if row) or "not tested"


class PlainLines:
    """Says a line when a step, or a stage outside of steps, ends, and every 30 s within a long one. Thread-safe."""

    def __init__(self, say: Callable[[str], object], now: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._now = now
        self._last = now()
        self._lock = threading.Lock()
        self._tracker = ProgressTracker(now)

    def __call__(self, event: Event) -> None:
        """Take in an event and say its line, where it has one."""
        with self._lock:
            progress = self._tracker.follow(event)
            if progress is not None and self._now() - self._last >= LINE_EVERY_SECONDS:
                self._last = self._now()
                self._say(self._line(progress))
            elif isinstance(event, StageFinished) and self._tracker.knows(event.stage):
                self._finish(event)
            elif isinstance(event, TaskFinished):
                self._say(f"{self._tracker.task} learned: {format_accuracy(event)}")
            elif isinstance(event, Note):
                self._say(event.text)

    def _line(self, progress: Progress) -> str:
        share = f" ({progress.done / progress.total:.0%})" if progress.total else ""
        parts = [f"{self._place}{self._tracker.name_of(progress.stage)}: {progress.amount}{share}"]
        parts += [text for text in (progress.speed, progress.by_whom, progress.time_left) if text]
        memory = format_memory(own_memory_bytes(), self._tracker.planned_bytes)
        return ", ".join([*parts, f"memory {memory}"])

    def _finish(self, event: StageFinished) -> None:
        tracker = self._tracker
        if not tracker.step or event.stage == tracker.step:
            peak = format_memory(event.peak_bytes, tracker.planned_bytes)
            self._say(f"{self._place}{event.stage}: {event.seconds:.1f} s, peak {peak}")

    @property
    def _place(self) -> str:
        return f"{self._tracker.task}, " if self._tracker.task else ""
