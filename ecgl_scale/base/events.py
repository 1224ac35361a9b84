"""What a long job says while it works; progress bars, logs and records subscribe to it.

A job takes ``on_event: EventSink`` and calls it; it never prints. Events are small frozen records,
sent from any thread, so a subscriber must be thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StageStarted:
    """A stage begins: a part of a job that counts what it does."""

    stage: str
    total: int | None
    """How many units it will do, where that is known."""
    unit: str
    """What is counted: ``edges``, ``rows``, ``bytes``."""


@dataclass(frozen=True)
class BlockFinished:
    """A stage has done some more of its units."""

    stage: str
    done: int


@dataclass(frozen=True)
class StageFinished:
    """A stage has ended."""

    stage: str
    seconds: float
    peak_bytes: int
    """Highest RssAnon + RssShmem seen in the stage."""


@dataclass(frozen=True)
class StepStarted:
    """A run begins one of the steps that its plan and its results speak of; ``StageFinished`` of that name ends it."""

    step: str
    """``extract``, ``train``, ``remember`` or ``evaluate``."""
    planned_bytes: int = 0
    """Its peak by the plan, all that the process holds included; 0 where it was not planned."""


@dataclass(frozen=True)
class Note:
    """Something a user should know that is not an error."""

    text: str
    is_warning: bool = False
    """Whether it is said even where no progress is shown: results leave out something that the user gave."""


@dataclass(frozen=True)
class EpochFinished:
    """One pass over a task's rows, and one step of the optimizer unless batched, is done."""

    task: int
    epoch: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class TaskStarted:
    """A task begins, or goes on after a stop."""

    task: int
    num_tasks: int


@dataclass(frozen=True)
class TaskFinished:
    """A task has been learned, remembered and tested."""

    task: int
    num_tasks: int
    accuracies: tuple[float, ...]
    """Percent, on each task seen so far: a row of the performance matrix; empty where nothing was tested."""
    accuracies_seen: tuple[float, ...] = ()
    """Accuracies on the whole graph seen so far, where tests are made there too."""


@dataclass(frozen=True)
class WorkerJoined:
    """A worker of a cluster is there when a job begins."""

    worker: str
    host: str
    pid: int
    threads: int
    memory_bytes: int
    """What it may use."""


@dataclass(frozen=True)
class WorkerStarted:
    """A worker of a cluster has been given some blocks."""

    worker: str
    work: str


@dataclass(frozen=True)
class WorkersHeard:
    """While blocks are waited for: when each worker of a cluster last gave a sign of life, in seconds since 1970."""

    heard: Mapping[str, float]


@dataclass(frozen=True)
class WorkerReported:
    """A worker of a cluster has done some blocks."""

    worker: str
    work: str
    """The kind of work, as in ``WORKS``."""
    num_blocks: int
    tries: int
    """How often the blocks were begun, those that failed included."""
    seconds: float
    read_bytes: int
    written_bytes: int
    peak_bytes: int
    """Highest RssAnon + RssShmem of the worker meanwhile."""


@dataclass(frozen=True)
class RunStopped:
    """The last event of a run."""

    reason: str
    """``finished``, or what ended it."""


Event = (
    StepStarted
    | StageStarted
    | BlockFinished
    | StageFinished
    | Note
    | EpochFinished
    | TaskStarted
    | TaskFinished
    | WorkerJoined
    | WorkerStarted
    | WorkersHeard
    | WorkerReported
    | RunStopped
)
EventSink = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """Drop the event: the default where nobody listens."""
    del event
