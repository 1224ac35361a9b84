"""The record of ``bench.methods`` as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecgl_scale.units import MIB

SETTINGS = ("task-il", "class-il")
Rows = Sequence[dict[str, Any]]


def render(rows: Rows) -> str:
    """A table a graph: AA and AF in both settings, and what it costs, of the second."""
    return "\n\n".join(_table(graph, rows) for graph in dict.fromkeys(row["graph"] for row in rows))


def _table(graph: str, rows: Rows) -> str:
    by_place = {(row["method"], row["setting"]): row for row in rows if row["graph"] == graph}
    epochs = next(row["epochs"] for row in rows if row["graph"] == graph)
    lines = [
        f"{graph}, {epochs} epochs a task, AA / AF (seeds)",
        "",
        "| method | task-IL | class-IL | train, ms an epoch | test, ms a task | kept | peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(name for name, _ in by_place):
        found = [by_place.get((method, setting)) for setting in SETTINGS]
        cells = [_accuracy(row) for row in found] + _costs(next(row for row in reversed(found) if row))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracy(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    aa, af = row["aa"], row["af"]
    forgotten = "" if af is None else f" / {af['mean']:.1f}"
    return f"{aa['mean']:.1f}±{aa['deviation']:.1f}{forgotten} ({len(row['seeds'])})"


def _costs(row: dict[str, Any]) -> list[str]:
    times = [f"{row[name]['mean']:.0f}" for name in ("train_ms_per_epoch", "inference_ms")]
    return [*times, *(f"{row[name] / MIB:.1f} MiB" for name in ("kept_bytes", "peak_bytes"))]
