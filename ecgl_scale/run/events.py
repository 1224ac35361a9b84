"""What a long job says while it works; progress bars, logs and records subscribe to it.

A job takes ``on_event: EventSink`` and calls it; it never prints. Events are small frozen records,
sent from any thread, so a subscriber must be thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class StageStarted:
    """A stage begins."""

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
class Note:
    """Something a user should know that is not an error."""

    text: str


Event = StageStarted | BlockFinished | StageFinished | Note
EventSink = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """Drop the event: the default where nobody listens."""
    del event
