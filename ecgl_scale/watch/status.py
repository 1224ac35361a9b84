"""How far a run is, from its files alone: while it goes, after it has ended, after it was killed.

Nothing is locked or written, so looking never disturbs the run, nor a run that is about to start.
"""

from __future__ import annotations

import json
import math
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.about_method import AboutMethod
from ecgl_scale.report.files import read_object, read_samples, read_settings
from ecgl_scale.tasks.metrics import PerformanceMatrix
from ecgl_scale.watch.stage_progress import StageProgress, after_event
from ecgl_scale.watch.worker_status import WorkerStatus, read_workers

Condition = Literal["running", "finished", "stopped", "killed", "unknown"]

SILENCE_SECONDS = 120.0
"""A run on another machine that has written nothing for so long is not taken to be alive."""


@dataclass(frozen=True)
class Status:
    """What is known of a run."""

    path: Path
    condition: Condition
    reason: str
    """Who runs it, or what ended it."""
    method: str
    is_reconstruction: bool
    """Whether the method was made again from a paper's description; it is called so wherever it is shown."""
    setting: str
    store: str
    num_tasks: int | None
    num_tasks_finished: int
    step: str
    """extract, train, remember or evaluate."""
    part: str
    """What it was last seen doing within the step."""
    stage: str
    """The part that counts what it does; empty where none does. What follows is about it."""
    unit: str
    done: int | None
    total: int | None
    rate: float | None
    """Units a second."""
    seconds_left: float | None
    """The seconds that the rest of this stage takes at that rate."""
    epoch: int
    """Finished epochs of this task."""
    num_epochs: int | None
    first_loss: float | None
    last_loss: float | None
    eval_scope: str
    """The graphs that tests are made on: task, seen or both."""
    average_accuracy: float | None
    average_forgetting: float | None
    """Accuracy and forgetting are in percent, after the last tested task."""
    average_accuracy_seen: float | None
    average_forgetting_seen: float | None
    """Both on the whole graph seen so far; None where tests are not made there."""
    seconds: float
    """The seconds of running, all processes together."""
    silent_seconds: float | None
    """The seconds since the last sign of life."""
    own_bytes: int
    """RssAnon + RssShmem, at the last sample."""
    peak_bytes: int
    planned_bytes: int
    step_planned_bytes: int
    """The planned peak of this step; 0 where it was not planned."""
    budget_bytes: int
    resume: str
    """The command that goes on with it; empty where there is nothing to do."""
    workers: tuple[WorkerStatus, ...] = ()
    """The workers of a cluster that took part."""


class RunWatcher:
    """Reads a run's files again and again; of ``events.jsonl`` only what is new."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        if not (path / "config.yaml").exists():
            raise InvalidInputError(
                "this is not the directory of a run, nor of a sweep",
                where=path,
                expected="config.yaml in it, or sweep.json",
                fix="give the directory that was given to ecgl run --out or ecgl sweep --out",
            )
        if any(path.glob("seed-*/config.yaml")):
            # it has a config too, but resuming it as a run would spoil the sweep
            raise InvalidInputError(
                "this is a combination of a sweep, not a run",
                where=path,
                fix=f"ecgl status {path.parent} shows the whole sweep, ecgl status {path}/seed-N one of its runs",
            )
        self._path = path
        self._now = now
        self._offset = 0
        self._seen: dict[str, Any] = {}

    def read_status(self) -> Status:
        """Read the files and say how far the run is now."""
        self._read_events()
        path, seen = self._path, self._seen
        settings, plan, state = (
            read_settings(path / "config.yaml"),
            read_object(path / "plan.json"),
            read_object(path / "state.json"),
        )
        about = AboutMethod.read(str(settings.get("method", "?")), plan)
        samples = read_samples(path / "memory.jsonl")
        condition, reason = self._condition(state)
        started, last = seen.get("started"), seen.get("time")
        seconds = samples[-1].seconds if samples else (last - started if started and last else 0.0)
        finished = int(state.get("task", 0))
        scope = str(settings.get("tasks.eval_scope", "task"))
        means = _means(state.get("macro", []), finished)
        means_seen = means if scope == "seen" else _means(state.get("macro_seen", []), finished)
        peaks = [int(stage.get("peak_bytes", 0)) for stage in state.get("stages", {}).values()]
        losses = {**dict(enumerate(_losses(state, seen.get("task")))), **seen.get("losses", {})}
        progress: StageProgress | None = seen.get("progress")
        return Status(
            path=path,
            condition=condition,
            reason=reason,
            method=about.name,
            is_reconstruction=about.is_reconstruction,
            setting=str(settings.get("setting", "?")),
            store=str(settings.get("store", "?")),
            num_tasks=seen.get("num_tasks"),
            num_tasks_finished=finished,
            step=samples[-1].stage if samples else str(state.get("step", "")),
            part=samples[-1].part if samples else "",
            stage="" if progress is None else progress.stage,
            unit="" if progress is None else progress.unit,
            done=None if progress is None else progress.done,
            total=None if progress is None else progress.total,
            rate=None if progress is None else progress.rate,
            seconds_left=None if progress is None else progress.seconds_left,
            epoch=max(losses, default=-1) + 1,
            num_epochs=settings.get("learn.epochs"),
            first_loss=losses[min(losses)] if losses else None,
            last_loss=losses[max(losses)] if losses else None,
            eval_scope=scope,
            average_accuracy=means[0],
            average_forgetting=means[1],
            average_accuracy_seen=means_seen[0],
            average_forgetting_seen=means_seen[1],
            seconds=seconds,
            silent_seconds=None if last is None else max(self._now() - last, 0.0),
            own_bytes=samples[-1].own_bytes if samples else 0,
            peak_bytes=max([sample.own_bytes for sample in samples] + peaks, default=0),
            planned_bytes=int(plan.get("peak_bytes", 0)),
            step_planned_bytes=int(seen.get("step_planned_bytes", 0)),
            budget_bytes=int(plan.get("budget_bytes", 0)),
            resume="" if condition in ("running", "finished") else resume_command(path),
            workers=read_workers(path, now=self._now(), is_running=condition == "running"),
        )

    def _read_events(self) -> None:
        try:
            with (self._path / "events.jsonl").open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # being written: it is read when it is whole
                    self._offset += len(line)
                    self._take_in(line)
            self._seen["time"] = max(self._seen.get("time") or 0.0, _changed_at(self._path / "memory.jsonl"))
        except OSError:
            return

    def _take_in(self, line: bytes) -> None:
        seen = self._seen
        try:
            event = json.loads(line)
            kind = event["event"]
            seen["time"] = max(float(event["time"]), seen.get("time") or 0.0)
        except (ValueError, KeyError, TypeError):
            return
        seen.setdefault("started", seen["time"])
        try:
            seen["progress"] = after_event(seen.get("progress"), event)
        except (ValueError, KeyError, TypeError):
            seen["progress"] = None
        seen["stopped"] = event.get("reason") if kind == "RunStopped" else None
        if kind == "TaskStarted":
            seen["losses"], seen["task"] = {}, event.get("task")
        if kind == "EpochFinished":
            seen.setdefault("losses", {})[int(event["epoch"])] = float(event["loss"])
        if kind == "StepStarted":
            seen["step_planned_bytes"] = event.get("planned_bytes") or 0
        if "num_tasks" in event:
            seen["num_tasks"] = int(event["num_tasks"])

    def _condition(self, state: dict[str, Any]) -> tuple[Condition, str]:
        holder = read_object(self._path / ".lock")
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        if state.get("is_finished"):
            return "finished", ""
        if holder and holder.get("host") == socket.gethostname():
            if holds_lock(self._path / ".lock", int(holder.get("pid", 0))):
                return "running", who
        elif holder:
            silent = self._now() - (self._seen.get("time") or 0.0)
            if not self._seen.get("stopped"):
                seen = f"{who}, which cannot be seen from here"
                return (
                    ("unknown", f"{seen}, has written nothing lately")
                    if silent > SILENCE_SECONDS
                    else ("running", seen)
                )
        stopped = self._seen.get("stopped")
        if stopped:
            return "stopped", str(stopped)
        return "killed", f"{who} is gone and left no word" if holder else "no process has it"


def holds_lock(path: Path, pid: int, *, locks: Path = Path("/proc/locks")) -> bool:
    """Whether a process of this machine holds the lock, without trying to take it."""
    try:
        inode = path.stat().st_ino
        lines = locks.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:  # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF"
        fields = line.split()
        if (
            len(fields) > 5
            and fields[1] == "FLOCK"
            and (fields[4], fields[5].rpartition(":")[2]) == (str(pid), str(inode))
        ):
            return True
    return False


def resume_command(path: Path) -> str:
    """What to type to go on; from the folder in which the run was begun, as a config's paths are relative to it."""
    origin = read_object(path / "origin.json")
    if origin:  # an update
        where = f" --where {shlex.quote(str(origin['where']))}" if origin.get("where") else ""
        store = read_settings(path / "config.yaml").get("store", "STORE")
        return f"ecgl update {origin.get('model', 'MODEL')} {store} --out {path}{where} --resume"
    return f"ecgl run {path / 'config.yaml'} --out {path} --resume"


def _losses(state: dict[str, Any], task: int | None) -> list[float]:
    """Losses of the task's epochs up to the last saved one: before a resumption, only the state knows them."""
    known = state.get("losses") or []
    return list(known[task]) if task is not None and task < len(known) else []


def _means(rows: list[list[float]], num_tasks: int) -> tuple[float | None, float | None]:
    """AA and AF after the last of so many tasks that was tested; None where there is none."""
    matrix = PerformanceMatrix.empty(max(num_tasks, 1))
    for task, row in enumerate(rows[:num_tasks]):
        if len(row) == task + 1:
            matrix.set_row(task, row)
    means = matrix.average_accuracy(), matrix.average_forgetting()
    return tuple(None if math.isnan(mean) else mean for mean in means)  # type: ignore[return-value]


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
