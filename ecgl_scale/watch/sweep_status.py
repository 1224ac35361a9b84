"""How far a sweep is, from ``sweep.json`` and the directories of its runs: while it goes, and after a crash.

``sweep.json`` says which runs there are and how those ended that the sweep saw end; what goes on now is asked of the
runs themselves, as a sweep that was killed has not written that. Nothing is locked or written.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.files import read_object
from ecgl_scale.tasks.measures import Spread
from ecgl_scale.watch.status import RunWatcher, Status, holds_lock

RECORD_NAME = "sweep.json"

SweepCondition = Literal["running", "finished", "failed", "stopped", "unknown"]
RunCondition = Literal["finished", "running", "failed", "stopped", "waiting"]


@dataclass(frozen=True)
class SweptRun:
    """A combination with a seed, and how far its run is."""

    path: str
    """The directory of the run, within the sweep's."""
    seed: int
    condition: RunCondition
    """``stopped``: it was begun and goes on with the sweep; ``waiting``: it has not begun."""
    accuracy: float | None
    """The AA of a finished run."""
    message: str
    """What ended it."""
    now: Status | None
    """The status of a running run, once it has begun to write."""


@dataclass(frozen=True)
class SweptCombination:
    """A row of the sweep's table."""

    name: str
    settings: dict[str, Any]
    runs: tuple[SweptRun, ...]

    @property
    def accuracy(self) -> Spread | None:
        """AA over the seeds that have finished."""
        return Spread.of([run.accuracy for run in self.runs if run.accuracy is not None])


@dataclass(frozen=True)
class SweepStatus:
    """What is known of a sweep."""

    path: Path
    condition: SweepCondition
    """``failed``: nothing is left to do, but some runs have failed."""
    reason: str
    seeds: tuple[int, ...]
    combinations: tuple[SweptCombination, ...]

    @property
    def runs(self) -> list[SweptRun]:
        """The runs of all combinations."""
        return [run for combination in self.combinations for run in combination.runs]


def count(runs: Sequence[SweptRun], *conditions: RunCondition) -> int:
    """How many of the runs are in one of these conditions."""
    return sum(run.condition in conditions for run in runs)


def is_sweep(path: Path) -> bool:
    """Whether a directory is that of a sweep."""
    return (path / RECORD_NAME).exists()


class SweepWatcher:
    """Reads the files of a sweep again and again; a run's events only once, a finished run's results too."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._watchers: dict[str, RunWatcher] = {}
        self._accuracies: dict[str, float | None] = {}
        if not self._record():
            raise InvalidInputError("the record of this sweep cannot be read", where=path / RECORD_NAME)

    def read_status(self) -> SweepStatus:
        """Read the files and say how far the sweep is now."""
        record = self._record()
        holder = read_object(self._path / ".lock")
        is_here = holder.get("host") == socket.gethostname()
        is_alive = is_here and holds_lock(self._path / ".lock", int(holder.get("pid", 0)))
        combinations = tuple(
            SweptCombination(
                str(entry.get("name")),
                dict(entry.get("settings", {})),
                tuple(self._run_status(run, is_alive=is_alive) for run in entry.get("runs", [])),
            )
            for entry in record.get("combinations", [])
        )
        runs = [run for combination in combinations for run in combination.runs]
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        return SweepStatus(
            self._path,
            *_condition(runs, who, is_alive=is_alive, is_elsewhere=bool(holder) and not is_here),
            tuple(record.get("seeds", [])),
            combinations,
        )

    def _record(self) -> dict[str, Any]:
        return read_object(self._path / RECORD_NAME)

    def _run_status(self, entry: dict[str, Any], *, is_alive: bool) -> SweptRun:
        name, seed, status = str(entry.get("path")), int(entry.get("seed", 0)), entry.get("status")
        message = str(entry.get("message") or "")
        if self._has_results(name):
            return SweptRun(name, seed, "finished", self._accuracies[name], "", None)
        now = self._status_of(name)
        if (now is not None and now.condition == "running") or (status == "running" and is_alive):
            # one that was just started has not locked its directory yet, or not even made it
            return SweptRun(name, seed, "running", None, "", now)
        if status == "failed":
            return SweptRun(name, seed, "failed", None, message, None)
        if now is not None:
            return SweptRun(name, seed, "stopped", None, message or now.reason, None)
        return SweptRun(name, seed, "waiting", None, "", None)

    def _has_results(self, name: str) -> bool:
        """Whether a run has finished; its AA, which it has not where nothing is tested, is then known."""
        if name not in self._accuracies:
            results = read_object(self._path / name / "results.json")
            if "aa" in results:
                found = results["aa"]
                self._accuracies[name] = float(found) if isinstance(found, int | float) else None
        return name in self._accuracies

    def _status_of(self, name: str) -> Status | None:
        if name not in self._watchers:
            if not (self._path / name / "config.yaml").exists():
                return None
            self._watchers[name] = RunWatcher(self._path / name, now=self._now)
        return self._watchers[name].read_status()


def _condition(runs: Sequence[SweptRun], who: str, *, is_alive: bool, is_elsewhere: bool) -> tuple[SweepCondition, str]:
    if is_alive:
        return "running", who
    if count(runs, "finished") == len(runs):
        return "finished", ""
    if is_elsewhere and count(runs, "running"):
        return "running", f"{who}, which cannot be seen from here"
    if not count(runs, "running", "stopped", "waiting"):
        return "failed", "every run has ended, not all of them well"
    if is_elsewhere:
        return "unknown", f"{who}, which cannot be seen from here, has written nothing lately"
    return "stopped", "no process has it"
