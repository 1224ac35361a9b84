"""Subscribers that show a job's progress: rich bars on a terminal, plain lines in a file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ecgl_scale.run.events import BlockFinished, Event, EventSink, Note, StageFinished, StageStarted
from ecgl_scale.run.memory import own_memory_bytes
from ecgl_scale.units import format_bytes, format_count

LINE_EVERY_SECONDS = 30.0
_log = logging.getLogger("ecgl_scale.progress")


@contextmanager
def progress_sink(*, bars: bool) -> Iterator[EventSink]:
    """The subscriber that fits where stderr goes."""
    if not bars:
        yield _PlainLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[memory]}"),
    ]
    with Progress(*columns, console=Console(stderr=True)) as shown:
        tasks: dict[str, TaskID] = {}
        units: dict[str, str] = {}

        def show(event: Event) -> None:
            if isinstance(event, StageStarted):
                units[event.stage] = event.unit
                tasks[event.stage] = shown.add_task(event.stage, total=event.total, count="", memory="")
            elif isinstance(event, BlockFinished) and event.stage in tasks:
                shown.update(
                    tasks[event.stage],
                    completed=event.done,
                    count=_amount(event.done, units[event.stage]),
                    memory=format_bytes(own_memory_bytes()),
                )
            elif isinstance(event, StageFinished) and event.stage in tasks:
                task = tasks[event.stage]
                done = shown.tasks[shown.task_ids.index(task)].completed
                shown.update(task, total=done, completed=done, memory=f"peak {format_bytes(event.peak_bytes)}")
            elif isinstance(event, Note):
                shown.console.print(event.text)

        yield show


class _PlainLines:
    """Logs a line when a stage ends and, in a long one, every 30 s."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._stages: dict[str, StageStarted] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, StageStarted):
                self._stages[event.stage] = event
            elif isinstance(event, BlockFinished):
                self._block(event)
            elif isinstance(event, StageFinished) and event.stage in self._stages:
                _log.info("%s: %.1f s, peak %s", event.stage, event.seconds, format_bytes(event.peak_bytes))
            elif isinstance(event, Note):
                _log.info("%s", event.text)

    def _block(self, event: BlockFinished) -> None:
        now = time.monotonic()
        stage = self._stages.get(event.stage)
        if stage is None or now - self._last < LINE_EVERY_SECONDS:
            return
        self._last = now
        share = f" ({event.done / stage.total:.0%})" if stage.total else ""
        memory = format_bytes(own_memory_bytes())
        _log.info("%s: %s%s, memory %s", event.stage, _amount(event.done, stage.unit), share, memory)


def _amount(done: int, unit: str) -> str:
    return format_bytes(done) if unit == "bytes" else f"{format_count(done)} {unit}"
