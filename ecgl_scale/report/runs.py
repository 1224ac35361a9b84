"""Finished runs as a report sees them: read from their directories, grouped over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.errors import InvalidInputError

NEEDED = ("aa", "af", "matrix", "method", "preset", "setting", "seed", "stages")


@dataclass(frozen=True)
class FinishedRun:
    """What ``results.json`` of a run says."""

    path: Path
    results: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> FinishedRun:
        """The results of a run directory, or an error that says what is missing."""
        try:
            results = json.loads((path / "results.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                "this is not the directory of a finished run",
                where=path,
                expected="results.json in it",
                fix="let the run finish: ecgl run --resume",
            ) from error
        missing = [name for name in NEEDED if name not in results]
        if missing:
            raise InvalidInputError(f"results.json lacks {', '.join(missing)}", where=path)
        return cls(path, results)

    @property
    def group(self) -> tuple[str, str, str]:
        """Runs that differ only in their seed."""
        return self.results["method"], self.results["preset"], self.results["setting"]

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return math.fsum(stage["seconds"] for stage in self.results["stages"].values())

    @property
    def peak_bytes(self) -> int:
        """Of all stages."""
        return max((stage["peak_bytes"] for stage in self.results["stages"].values()), default=0)


@dataclass(frozen=True)
class Spread:
    """Mean and population standard deviation over seeds, as the papers report."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where there is no value."""
        return cls(statistics.fmean(values), statistics.pstdev(values), len(values)) if values else None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + (f" ± {self.deviation:.1f}" if self.count > 1 else "")


@dataclass(frozen=True)
class GroupSummary:
    """Runs of one method, preset and setting."""

    method: str
    preset: str
    setting: str
    accuracy: Spread | None
    forgetting: Spread | None
    seconds: float
    peak_bytes: int
    num_runs: int


def summarise(runs: Sequence[FinishedRun]) -> list[GroupSummary]:
    """One summary a group, in order of first appearance."""
    groups: dict[tuple[str, str, str], list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return [
        GroupSummary(
            *group,
            accuracy=Spread.of([run.results["aa"] for run in members if run.results["aa"] is not None]),
            forgetting=Spread.of([run.results["af"] for run in members if run.results["af"] is not None]),
            seconds=statistics.fmean(run.seconds for run in members),
            peak_bytes=max(run.peak_bytes for run in members),
            num_runs=len(members),
        )
        for group, members in groups.items()
    ]
