"""Which runs a report is about: those that have finished, each seed once, and why the others are left out.

A table that lacks a row, or a mean over fewer seeds than were asked for, should say so itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.base.versions import newest_of
from ecgl_scale.config.keys import NOT_CHANGES
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.runs import FinishedRun, own_settings
from ecgl_scale.watch.status import RunWatcher
from ecgl_scale.watch.sweep_status import RECORD_NAME, SweepWatcher, SweptRun

ORDER = ("failed", "killed", "stopped", "unknown", "repeated", "running", "waiting")
"""Conditions in the order in which a reader must know of them."""


@dataclass(frozen=True)
class Omitted:
    """A run that a report does not count."""

    path: Path
    condition: str
    """One of ``ORDER``, which are those of ``ecgl status``, and ``repeated``."""
    reason: str
    """One line; empty where there is nothing to add."""


def find_runs(given: Sequence[Path]) -> tuple[list[FinishedRun], list[Omitted]]:
    """The finished runs of these directories and of all below them, sweeps in their own order; and those left out.

    Raises
    ------
    InvalidInputError
        A directory without a finished run.
    """
    paths: dict[Path, Path] = {}
    unfinished: dict[Path, Omitted] = {}
    for place in given:
        found, others = ([place], []) if (place / "results.json").exists() else _runs_below(place)
        if not found and any(other.path != place for other in others):
            raise InvalidInputError(
                f"none of the {len(others)} runs here has finished: {count_conditions(others)}",
                where=place,
                fix="let one finish; ecgl status says how far a run or a sweep is, and how to go on",
            )
        for path in found or [place]:
            paths.setdefault(path.resolve(), path)
        for other in others:
            unfinished.setdefault(other.path.resolve(), other)
    runs: dict[str, FinishedRun] = {}
    repeated = []
    for path in paths.values():
        run = FinishedRun.read(path)
        first = runs.setdefault(_identity(run), run)
        if first is not run:
            repeated.append(Omitted(path, "repeated", f"settings and seed of {first.path}"))
    return list(runs.values()), sorted([*unfinished.values(), *repeated], key=lambda run: ORDER.index(run.condition))


def count_conditions(omitted: Sequence[Omitted]) -> str:
    """The counts of conditions as text: ``1 failed, 3 waiting``."""
    counts = Counter(run.condition for run in omitted)
    return ", ".join(f"{counts[condition]} {condition}" for condition in ORDER if counts[condition])


def _runs_below(folder: Path) -> tuple[list[Path], list[Omitted]]:
    """The finished and the other runs below a directory, be it of runs, of sweeps or of a sweep's combination."""
    with_results = {path.parent for path in folder.rglob("results.json")}
    finished = sorted({newest_of(path) for path in with_results})
    omitted: list[Omitted] = []
    places: dict[Path, int] = {}
    for sweep in sorted(path.parent for path in folder.rglob(RECORD_NAME)):
        for run in _runs_of(sweep):
            path = sweep / run.path
            places[path] = len(places)
            if run.condition != "finished":
                reason = run.message.partition("\n")[0]
                omitted.append(Omitted(path, run.condition, "" if run.condition == "running" else reason))
    for path in sorted(path.parent for path in folder.rglob("config.yaml")):
        if path not in places and path not in with_results and _was_begun(path):
            status = RunWatcher(path).read_status()
            omitted.append(Omitted(path, status.condition, "" if status.condition == "running" else status.reason))
    return sorted(finished, key=lambda path: places.get(path, len(places))), omitted


def _runs_of(sweep: Path) -> Iterator[SweptRun]:
    try:
        found = SweepWatcher(sweep).read_status()
    except InvalidInputError:  # its record cannot be read; its runs can
        return
    yield from found.runs


def _was_begun(path: Path) -> bool:
    """Whether a run was begun here: a config alone may be that of a sweep's combination, or anybody's."""
    return (path / "state.json").exists() or (path / ".lock").exists()


def _identity(run: FinishedRun) -> str:
    """What makes a run itself: two with one identity would count a seed twice, and show a spread of nothing."""
    settings = own_settings(run) or {"path": run.path.resolve()}
    kept = sorted((key, repr(value)) for key, value in settings.items() if key not in NOT_CHANGES)
    return repr((run.part, run.results["seed"], run.results.get("split_hash"), kept))
