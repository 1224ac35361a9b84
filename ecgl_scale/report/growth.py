"""A model over real time: its versions, when each was finished, what it learned and how good it was then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ecgl_scale.base.versions import SEAL_NAME, VERSIONS_NAME, versions_of
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.compare import accuracy_columns
from ecgl_scale.report.files import read_object
from ecgl_scale.report.runs import FinishedRun
from ecgl_scale.report.tables import Cell, Table, number_cell, seconds_cell, text_cell

NOTE = (
    "Each update adds a version. Time and accuracies are those of the version, AA over all tasks that it has learned. "
    "The date is in UTC."
)


def version_table(run: FinishedRun, name: str) -> Table | None:
    """A row for each version up to the one that is reported; None for a model that was never updated in place."""
    rows = []
    for number, version in _versions_until(run.path):
        seal, last = read_object(version.path / SEAL_NAME), version.results["tasks"][-1]
        rows.append(
            (
                number_cell(number, "{:d}"),
                text_cell(_finished(version.path)),
                number_cell(seal.get("generation"), "{:d}"),
                text_cell(last["name"]),
                number_cell(last["num_nodes"], "{:,d}"),
                seconds_cell(version.seconds),
                *(cell for scope in run.scopes for cell in _accuracies(version, scope)),
            )
        )
    columns = ("version", "finished", "generation", "last task", "its nodes", "time", *accuracy_columns(run.scopes))
    return Table(f"{name}-versions", "Versions", columns, tuple(rows), NOTE) if len(rows) > 1 else None


def _accuracies(version: FinishedRun, scope: str) -> list[Cell]:
    return [number_cell(version.measure("aa", scope)), number_cell(version.measure("af", scope), "{:+.1f}")]


def _versions_until(path: Path) -> Iterator[tuple[int, FinishedRun]]:
    if path.parent.name != VERSIONS_NAME:
        return
    model = path.parent.parent
    for number, directory in {0: model, **versions_of(model)}.items():
        try:
            yield number, FinishedRun.read(directory)
        except InvalidInputError:  # begun and not finished, or a saved learner without results
            continue
        if directory.name == path.name:
            return


def _finished(directory: Path) -> str:
    """The time of the last event: a copy of the files keeps it."""
    seconds = (directory / SEAL_NAME).stat().st_mtime if (directory / SEAL_NAME).exists() else 0.0
    events = directory / "events.jsonl"
    for line in events.read_text(encoding="utf-8").splitlines() if events.exists() else []:
        try:
            seconds = float(json.loads(line)["time"])
        except (ValueError, KeyError):  # torn by a power failure
            continue
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
