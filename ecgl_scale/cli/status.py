"""``ecgl status``: how far a run or a sweep is, from another terminal, also after a crash."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.cli.options import Json
from ecgl_scale.cli.output import print_json, print_table
from ecgl_scale.tasks.measures import format_accuracies
from ecgl_scale.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from ecgl_scale.watch.status import Status
    from ecgl_scale.watch.worker_status import WorkerStatus

READ_EVERY_SECONDS = 1.0
MOST_WORKERS = 16
"""Lines of workers that are shown."""


class _HasCondition(Protocol):
    @property
    def condition(self) -> str: ...


Found = TypeVar("Found", bound=_HasCondition)


def status(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Directory of a run, of a sweep, or of a model: of its versions the newest, or MODEL@N."
        ),
    ],
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Look every second until it ends; into a file, a line a step and every 30 s."),
    ] = False,
    as_json: Json = False,
) -> None:
    """How far a run or a sweep is, what it holds, and how to go on with it if it was killed."""
    from ecgl_scale.base.versions import version_directory
    from ecgl_scale.watch.status import RunWatcher
    from ecgl_scale.watch.sweep_status import SweepWatcher, is_sweep

    require_directory(run, what="ecgl status", fix="ask on the machine that runs it, or read its state.json")
    run = version_directory(run, complete=False)
    is_watched = watch and not as_json
    if is_sweep(run):
        from ecgl_scale.cli import status_sweep

        of_sweep = _last_status(SweepWatcher(run).read_status, status_sweep.describe, status_sweep.line, is_watched)
        if as_json and of_sweep is not None:
            print_json(status_sweep.as_json(of_sweep))
        elif of_sweep is not None:
            status_sweep.show(of_sweep)
        return
    found = _last_status(RunWatcher(run).read_status, describe, line, is_watched)
    if as_json and found is not None:
        print_json({**asdict(found), "path": str(found.path)})
    elif found is not None:
        print_table(describe(found))


def _last_status(
    read_status: Callable[[], Found],
    describe: Callable[[Found], dict[str, str]],
    line: Callable[[Found], tuple[object, str]],
    watch: bool,
) -> Found | None:
    """The last status, after what was to be watched; None where the user has stopped watching."""
    found = read_status()
    if not watch or found.condition != "running":
        return found
    try:
        return _watch_on_terminal(read_status, describe) if sys.stdout.isatty() else _watch_by_lines(read_status, line)
    except KeyboardInterrupt:
        return None


def describe(found: Status) -> dict[str, str]:
    """The lines that show a status, by their names."""
    from ecgl_scale.report.about_method import shown_method

    method = shown_method(found.method, is_reconstruction=found.is_reconstruction)
    lines = {"run": f"{found.path} ({method}, {found.setting}, {found.store})"}
    says_both = found.reason.startswith(f"{found.condition} ")  # "stopped by SIGTERM"
    lines["state"] = found.reason if says_both else f"{found.condition}{f': {found.reason}' if found.reason else ''}"
    of_all = f" of {found.num_tasks}" if found.num_tasks else ""
    if found.condition == "finished":
        lines["tasks"] = f"{found.num_tasks_finished}{of_all} learned"
    else:
        lines["task"] = f"{found.num_tasks_finished + 1}{of_all}"
        part = f", {found.part}" if found.part and not found.part.startswith(found.step) else ""
        epochs = f", epoch {found.epoch} of {found.num_epochs}" if found.step == "train" else ""
        lines["step"] = f"{found.step or 'start'}{part}{epochs}"
    if found.condition == "running" and found.stage:
        lines["progress"] = ", ".join(progress(found))
    if found.last_loss is not None and found.first_loss is not None:
        lines["loss"] = f"{found.last_loss:.4g}, from {found.first_loss:.4g} at the task's first epoch"
    if found.average_accuracy is not None:
        lines["accuracy"] = f"{accuracy(found)} after {found.num_tasks_finished} tasks"
    lines["elapsed"] = format_seconds(found.seconds) + " of running"
    if found.silent_seconds is not None and found.condition != "finished":
        lines["last sign"] = f"{format_seconds(found.silent_seconds)} ago"
    if found.peak_bytes:
        now = f"{format_bytes(found.own_bytes)} now, " if found.condition == "running" else ""
        share = f" ({found.peak_bytes / found.planned_bytes:.0%})" if found.planned_bytes else ""
        lines["memory"] = (
            f"{now}peak {format_bytes(found.peak_bytes)} of {format_bytes(found.planned_bytes)} planned{share}"
        )
    lines |= describe_workers(found)
    if found.resume:
        lines["go on with"] = found.resume
    return lines


def describe_workers(found: Status) -> dict[str, str]:
    """A line for each worker; of many, those that are silent come first and the last are only counted."""
    workers = sorted(found.workers, key=lambda worker: not worker.is_silent)
    lines = {f"worker {worker.name}": worker_line(worker, found.condition) for worker in workers[:MOST_WORKERS]}
    if len(workers) > MOST_WORKERS:
        lines["and"] = f"{len(workers) - MOST_WORKERS} workers more; --json has them all"
    return lines


def worker_line(worker: WorkerStatus, condition: str) -> str:
    """What one worker does, as text: ``rank.sweep, 120 blocks done, peak 210 MiB of 6 GiB, heard 2.0 s ago``."""
    again = f" ({format_count(worker.num_blocks_again)} tried again)" if worker.num_blocks_again else ""
    limit = f" of {format_bytes(worker.memory_bytes)}" if worker.memory_bytes else ""
    parts = [worker.work or "no work yet", f"{format_count(worker.num_blocks)} blocks done{again}"]
    parts += [f"peak {format_bytes(worker.peak_bytes)}{limit}"] if worker.peak_bytes else []
    if condition == "running":
        ago = format_seconds(worker.heard_seconds)
        parts += [f"silent for {ago}" if worker.is_silent else f"heard {ago} ago"]
        parts[0] = parts[0] if worker.is_busy or not worker.work else f"waits after {worker.work}"
    return ", ".join(parts)


def accuracy(found: Status) -> str:
    """The accuracy of the tasks so far as text, of both scopes where both are tested."""
    if found.average_accuracy is None:
        return "AA not known yet"
    by_scope = {
        "task": (found.average_accuracy, found.average_forgetting),
        "seen": (found.average_accuracy_seen, found.average_forgetting_seen),
    }
    return format_accuracies(by_scope if found.eval_scope == "both" else {found.eval_scope: by_scope["task"]})


def progress(found: Status) -> list[str]:
    """Amount, rate and time left of the stage as text; each says so where it is not known."""
    from ecgl_scale.base.progress import Progress

    # the stage "train task 0" is of the step "train", which is named before it
    name = f"{found.stage}: " if found.stage and not found.stage.startswith(found.step) else ""
    if not found.stage or found.done is None:
        return [f"{name}no block done yet", "rate not known yet", "time left not known yet"]
    of_stage = Progress(found.stage, found.unit, found.done, found.total, found.rate)
    share = f" ({found.done / found.total:.0%})" if found.total else ""
    left = of_stage.time_left or "time left not known yet"
    return [f"{name}{of_stage.amount}{share}", of_stage.speed or "rate not known yet", left]


def brief(found: Status) -> str:
    """One short line on a run, to stand beside others: its place, the amount done, the time left."""
    if found.done is None:
        return _place(found)
    amount, _, left = progress(found)
    return ", ".join([_place(found), amount, left])


def _place(found: Status) -> str:
    of_all = f" of {found.num_tasks}" if found.num_tasks else ""
    return f"task {found.num_tasks_finished + 1}{of_all}, {found.step or 'start'}"


def line(found: Status) -> tuple[object, str]:
    """The status as one line, for a file; before it the place, whose change is worth a new line."""
    from ecgl_scale.base.progress import format_memory

    place = _place(found)
    memory = format_memory(found.own_bytes, found.step_planned_bytes or found.planned_bytes)
    parts = [place, *progress(found), f"memory {memory}", f"{format_seconds(found.seconds)} of running"]
    return (place, found.stage), ", ".join([*parts, accuracy(found)])


def _watch_on_terminal(read_status: Callable[[], Found], describe: Callable[[Found], dict[str, str]]) -> Found:
    """Renew the lines on a terminal while it runs; returns the last status."""
    from rich.live import Live
    from rich.table import Table

    with Live(auto_refresh=False, transient=True) as live:
        while True:
            found = read_status()
            table = Table.grid(padding=(0, 2))
            for name, value in describe(found).items():
                table.add_row(name, value)
            live.update(table, refresh=True)
            if found.condition != "running":
                return found
            time.sleep(READ_EVERY_SECONDS)


def _watch_by_lines(read_status: Callable[[], Found], line: Callable[[Found], tuple[object, str]]) -> Found:
    """Print a line when the task, step or stage changes, and every 30 s of a long one; returns the last status."""
    from ecgl_scale.base.progress import LINE_EVERY_SECONDS

    before: object = None
    said = 0.0
    while True:
        found = read_status()
        if found.condition != "running":
            return found
        place, text = line(found)
        if place != before or time.monotonic() - said >= LINE_EVERY_SECONDS:
            print(text, flush=True)
            before, said = place, time.monotonic()
        time.sleep(READ_EVERY_SECONDS)
