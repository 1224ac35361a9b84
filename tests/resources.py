"""What tests let a job use."""

from __future__ import annotations

from pathlib import Path

from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.engine.executor import Executor
from ecgl_scale.engine.resources import Resources


def at(
    memory: str | int | None = None,
    threads: int | None = None,
    on_event: EventSink = ignore_events,
    executor: Executor | None = None,
    work: Path | None = None,
) -> Resources:
    """Resources as a command would find them."""
    return Resources.of(memory, threads, on_event=on_event, executor=executor, work=work)
