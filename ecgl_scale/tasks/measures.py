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


def format_accuracies(by_scope: Mapping[str, tuple[float | None, float | None]]) -> str:
    """AA and AF of each scope as text: ``AA 94.1, AF -6.3; seen AA 80.2, AF -9.0``."""
    texts = []
    for scope, (accuracy, forgetting) in by_scope.items():
        lost = "-" if forgetting is None else f"{forgetting:.1f}"
        named = "seen AA" if scope == "seen" else "AA"
        texts.append("not tested" if accuracy is None else f"{named} {accuracy:.1f}, AF {lost}")
    return "; ".join(dict.fromkeys(texts))


def seconds_per_epoch(results: Mapping[str, Any], planned_epochs: int | None) -> float | None:
    """Seconds of the stage ``train``, all tasks together, by epochs run: what a user waits for an epoch.

    That is what the paper's table has: the wall time of a task by its epochs, so whatever comes between epochs counts.
    Results that do not name their epochs have run all that were planned.
    """
    stage, num_epochs = results["stages"].get("train"), results.get("num_epochs", planned_epochs)
    return float(stage["seconds"]) / num_epochs if stage and num_epochs else None


def seconds_per_test(results: Mapping[str, Any]) -> float | None:
    """Seconds of the stage ``evaluate`` by graphs that were gone through to test.

    In the scope ``task`` these are, after task t, those of the tasks 1 to t, so T (T + 1) / 2 in all; in the scope
    ``seen`` it is one. After a task without tests it is none.
    """
    stage = results["stages"].get("evaluate")
    tested = [t for t, row in enumerate(results["matrix"], 1) if any(value is not None for value in row)]
    scope = results.get("eval_scope", "task")
    num_tests = (sum(tested) if scope != "seen" else 0) + (len(tested) if scope != "task" else 0)
    return float(stage["seconds"]) / num_tests if stage and num_tests else None
