"""Numbers that tables show of finished runs: spreads over seeds, and times as the paper's tables have them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


def seconds_per_epoch(results: Mapping[str, Any], planned_epochs: int | None) -> float | None:
    """Seconds of the stage ``train``, all tasks together, by epochs run: what a user waits for an epoch.

    That is what the paper's table has: the wall time of a task by its epochs, so whatever comes between epochs counts.
    Results that do not name their epochs have run all that were planned.
    """
    stage, num_epochs = results["stages"].get("train"), results.get("num_epochs", planned_epochs)
    return float(stage["seconds"]) / num_epochs if stage and num_epochs else None


def seconds_per_test(results: Mapping[str, Any], num_tasks: int) -> float | None:
    """Seconds of the stage ``evaluate`` by tests: after task t the tasks 1 to t are tested, so T (T + 1) / 2 in all."""
    stage = results["stages"].get("evaluate")
    return float(stage["seconds"]) / (num_tasks * (num_tasks + 1) / 2) if stage else None
