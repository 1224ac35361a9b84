"""Shows a job's progress where stderr goes: bars on a terminal, plain lines in a file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ecgl_scale.base.events import Event, EventSink, Note, StageFinished, StageStarted, TaskFinished, TaskStarted
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.base.progress import PlainLines, Progress, ProgressTracker, format_accuracy, format_left, format_memory
from ecgl_scale.cli.output import log_warnings
from ecgl_scale.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import rich.progress

RUN = "run"
_log = logging.getLogger("ecgl_scale.progress")


@contextmanager
def progress_sink(*, bars: bool) -> Iterator[EventSink]:
    """The subscriber that fits where stderr goes."""
    if not bars:
        lines = PlainLines(lambda line: _log.info("%s", line))

        def say(event: Event) -> None:
            is_warning = isinstance(event, Note) and event.is_warning
            (log_warnings if is_warning else lines)(event)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Display

    names = ("amount", "speed", "left")
    columns = [
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=10),
        *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in names),
    ]
    with Display(*columns, console=Console(stderr=True)) as display:
        yield _Bars(display)


class _Bars:
    """Shows a bar a stage. A run has one for all tasks, one for what goes on now, and a lasting line for each task."""

    def __init__(self, display: rich.progress.Progress) -> None:
        self._display = display
        self._tracker = ProgressTracker()
        self._bars: dict[str, rich.progress.TaskID] = {}
        self._lock = threading.Lock()
        self._began = self._task_began = time.monotonic()
        self._end: float | None = None
        """When the run will end, if every task takes as long as those before."""
        self._first_task = self._task_peak_bytes = self._task_planned_bytes = 0

    def __call__(self, event: Event) -> None:
        with self._lock:
            progress = self._tracker.follow(event)
            if progress is not None:
                self._move(progress)
            elif isinstance(event, StageStarted):
                self._begin(event)
            elif isinstance(event, StageFinished):
                self._finish(event)
            elif isinstance(event, TaskStarted):
                self._begin_task(event)
            elif isinstance(event, TaskFinished):
                self._finish_task(event)
            elif isinstance(event, Note):
                self._print(event.text)

    def _begin(self, event: StageStarted) -> None:
        self._remove_old_bars()
        name = self._tracker.name_of(event.stage)
        self._bars[event.stage] = self._display.add_task(name, total=event.total, amount="", speed="", left="")

    def _move(self, progress: Progress) -> None:
        self._display.update(
            self._bars[progress.stage],
            completed=progress.done,
            amount=progress.amount if RUN in self._bars else f"{progress.amount}, {format_bytes(own_memory_bytes())}",
            speed=", ".join(text for text in (progress.speed, progress.by_whom) if text),
            left=progress.time_left,
        )
        if RUN in self._bars:
            memory = format_memory(own_memory_bytes(), self._tracker.planned_bytes)
            self._display.update(self._bars[RUN], amount=memory, left=self._run_left(progress.seconds_left))

    def _finish(self, event: StageFinished) -> None:
        if RUN in self._bars:
            self._task_peak_bytes = max(self._task_peak_bytes, event.peak_bytes)
            self._task_planned_bytes = max(self._task_planned_bytes, self._tracker.planned_bytes)
        elif event.stage in self._bars:
            bar = self._bars[event.stage]
            done = self._display.tasks[self._display.task_ids.index(bar)].completed
            peak = f"{format_seconds(event.seconds)}, peak {format_bytes(event.peak_bytes)}"
            self._display.update(bar, total=done, completed=done, amount=peak, left="")

    def _begin_task(self, event: TaskStarted) -> None:
        self._task_began, self._task_peak_bytes, self._task_planned_bytes = time.monotonic(), 0, 0
        if RUN not in self._bars:
            self._first_task = event.task
            self._bars[RUN] = self._display.add_task("", total=event.num_tasks, amount="", speed="", left="")
        self._display.update(self._bars[RUN], description=self._tracker.task, completed=event.task)

    def _finish_task(self, event: TaskFinished) -> None:
        now, done = time.monotonic(), event.task + 1
        task_seconds = (now - self._began) / (done - self._first_task)
        self._end = now + (event.num_tasks - done) * task_seconds
        self._display.update(self._bars[RUN], completed=done, left=self._run_left())
        peak = format_memory(self._task_peak_bytes, self._task_planned_bytes)
        seconds = format_seconds(now - self._task_began)
        self._print(f"{self._tracker.task}: {format_accuracy(event)}, {seconds}, peak {peak}")

    def _run_left(self, stage_seconds: float | None = None) -> str:
        """The run's time left, not less than what goes on now will take: a task may be larger than those before."""
        if self._end is None:
            return ""
        return format_left(max(self._end - time.monotonic(), stage_seconds or 0.0))

    def _remove_old_bars(self) -> None:
        """Remove the bars of stages that are over, where they belong to a run: it has hundreds."""
        for stage in [stage for stage in self._bars if stage != RUN and RUN in self._bars]:
            self._display.remove_task(self._bars.pop(stage))

    def _print(self, text: str) -> None:
        self._display.console.print(text, markup=False, highlight=False)
