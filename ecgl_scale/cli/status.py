"""``ecgl status``: how far a run is, from another terminal, also after a crash."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecgl_scale.cli.options import Json
from ecgl_scale.cli.output import print_json, print_table
from ecgl_scale.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ecgl_scale.report.status import RunWatcher, Status

LOOK_EVERY_SECONDS = 1.0


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look every second until the run ends; into a file, a line when the step changes."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """How far a run is, what it holds, and how to go on with it if it was killed."""
    from ecgl_scale.report.status import RunWatcher

    watcher = RunWatcher(run)
    found = watcher.look()
    if watch and not as_json and found.condition == "running":
        try:
            found = _watch(watcher) if sys.stdout.isatty() else _follow(watcher)
        except KeyboardInterrupt:
            return
    if as_json:
        print_json({**asdict(found), "path": str(found.path)})
    else:
        print_table(describe(found))


def describe(found: Status) -> dict[str, str]:
    """A status as lines."""
    lines = {"run": f"{found.path} ({found.method}, {found.setting}, {found.store})"}
    lines["state"] = f"{found.condition}{f': {found.reason}' if found.reason else ''}"
    of_all = f" of {found.num_tasks}" if found.num_tasks else ""
    if found.condition == "finished":
        lines["tasks"] = f"{found.num_tasks_finished}{of_all} learned"
    else:
        lines["task"] = f"{found.num_tasks_finished + 1}{of_all}"
        part = f", {found.part}" if found.part and not found.part.startswith(found.step) else ""
        epochs = f", epoch {found.epoch} of {found.num_epochs}" if found.step == "train" else ""
        lines["step"] = f"{found.step or 'start'}{part}{epochs}"
    if found.last_loss is not None and found.first_loss is not None:
        lines["loss"] = f"{found.last_loss:.4g}, from {found.first_loss:.4g} at the task's first epoch"
    if found.average_accuracy is not None:
        forgetting = "" if found.average_forgetting is None else f", AF {found.average_forgetting:.1f}"
        lines["accuracy"] = f"AA {found.average_accuracy:.1f}{forgetting} after {found.num_tasks_finished} tasks"
    lines["elapsed"] = format_seconds(found.seconds) + " of running"
    if found.silent_seconds is not None and found.condition != "finished":
        lines["last sign"] = f"{format_seconds(found.silent_seconds)} ago"
    if found.peak_bytes:
        now = f"{format_bytes(found.own_bytes)} now, " if found.condition == "running" else ""
        share = f" ({found.peak_bytes / found.planned_bytes:.0%})" if found.planned_bytes else ""
        lines["memory"] = (
            f"{now}peak {format_bytes(found.peak_bytes)} of {format_bytes(found.planned_bytes)} planned{share}"
        )
    if found.resume:
        lines["go on with"] = found.resume
    return lines


def _watch(watcher: RunWatcher) -> Status:
    """Lines that renew themselves, on a terminal."""
    from rich.live import Live
    from rich.table import Table

    with Live(auto_refresh=False, transient=True) as live:
        while True:
            found = watcher.look()
            table = Table.grid(padding=(0, 2))
            for name, value in describe(found).items():
                table.add_row(name, value)
            live.update(table, refresh=True)
            if found.condition != "running":
                return found
            time.sleep(LOOK_EVERY_SECONDS)


def _follow(watcher: RunWatcher) -> Status:
    """A plain line whenever the step or the task changes, in a file."""
    before = ""
    while True:
        found = watcher.look()
        if found.condition != "running":
            return found
        lines = describe(found)
        line = f"task {lines['task']}: {found.step}"
        if line != before:
            print(f"{line}, {lines['elapsed']}, {lines.get('accuracy', 'AA not known yet')}", flush=True)
            before = line
        time.sleep(LOOK_EVERY_SECONDS)
