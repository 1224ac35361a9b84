"""The records of ``bench.accuracy`` as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SETTINGS = ("task-il", "class-il")
MEASURED: dict[tuple[str, str], tuple[float, float]] = {
    ("coauthor_cs", "task-il"): (87.1, -8.5),
    ("coauthor_cs", "class-il"): (84.6, -11.4),
    ("amazon_computers", "task-il"): (86.5, -12.4),
    ("amazon_computers", "class-il"): (68.7, -34.5),
}
"""AA and AF of the public reference code on the fixed splits (design notes, protocol.md)."""
NAMES = {
    "plus": "`plus`",
    "plus_ecgl": "`plus` as it was: `select: ecgl`, last layer trained",
    "reference": "`reference`",
    "paper": "`paper`",
    "joint_mlp": "joint, trained as MLP",
    "plus_random": "the same, `select: random`",
    "plus_propagated": "the same, `features: propagated:2`",
}
Rows = Sequence[dict[str, Any]]


def render(rows: Rows, choices: Rows = ()) -> str:
    """All tables: the fixed splits beside what was measured, a table a graph, what ``plus`` was chosen from."""
    parts = [_fixed(rows)]
    for graph in dict.fromkeys(row["graph"] for row in rows if row["row"] != "reference_fixed"):
        of_graph = [row for row in rows if row["graph"] == graph]
        parts.append(f"{graph}, AA / AF (seeds)\n\n" + _table(of_graph, list(NAMES)))
    for graph in dict.fromkeys(row["graph"] for row in choices):
        of_graph = [row for row in choices if row["graph"] == graph]
        names = list(dict.fromkeys(row["row"] for row in of_graph))
        parts.append(f"{graph}, variants of `plus`, validation nodes, AA / AF (seeds)\n\n" + _table(of_graph, names))
    return "\n\n".join(part for part in parts if part)


def _fixed(rows: Rows) -> str:
    lines = []
    for row in rows:
        measured = MEASURED.get((row["graph"], row["setting"]))
        if row["row"] == "reference_fixed" and measured is not None:
            difference = row["aa"]["mean"] - measured[0]
            cells = (row["graph"], row["setting"], _cell(row), f"{measured[0]} / {measured[1]}", f"{difference:+.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return ""
    head = "| graph | setting | `reference`, AA / AF (seeds) | public code | difference |\n|---|---|---|---|---|\n"
    return head + "\n".join(lines)


def _table(rows: Rows, names: Sequence[str]) -> str:
    by_place = {(row["row"], row["setting"]): row for row in rows}
    lines = ["| | task-IL | class-IL |", "|---|---|---|"]
    for name in names:
        cells = [_cell(by_place.get((name, setting))) for setting in SETTINGS]
        if any(cells):
            lines.append(f"| {NAMES.get(name, name)} | {' | '.join(cell or '-' for cell in cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    accuracy, forgetting = row["aa"], row["af"]
    forgotten = "" if forgetting["mean"] is None else f" / {forgetting['mean']:.1f}"
    return f"{accuracy['mean']:.1f}±{accuracy['std']:.1f}{forgotten} ({accuracy['n']})"
