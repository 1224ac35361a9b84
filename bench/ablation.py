"""What lifts E-CGL's own training: variants of the preset ``plus``, each with one thing changed, on validation nodes.

    python -m bench.ablation [--graphs ...] [--rows ...] [--settings class-il] [--seeds 0-2] [--epochs 100] [--jobs 2]
    python -m bench.ablation --table       the table of README.md, from the record

As ``bench.accuracy``, which has the graphs; tests are made after the last task, in both scopes. Variants that are no
part of the product are methods of ``bench.ablation_methods``. What is in the record is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.accuracy import GRAPHS, Row
from bench.accuracy_command import Case, run_case

ALL = ("tasks.eval_scope=both", "tasks.evaluate=last")
METHODS = "bench.ablation_methods"


def _variant(*overrides: str, method: str = "ecgl", select: str = "herding") -> Row:
    return Row("plus", method, (*ALL, f"bank.select={select}", "learn.last_layer=trained", *overrides))


SOLVED = "learn.last_layer=solved"
ROWS: dict[str, Row] = {
    "ecgl": _variant(select="ecgl"),
    "random": _variant(select="random"),
    "herding": _variant(),
    "solved": _variant(SOLVED),
    "solved_ecgl": _variant(SOLVED, select="ecgl"),
    "solved_random": _variant(SOLVED, select="random"),
    "solved_at_test": _variant(method=f"{METHODS}:SolvedAtTest"),
    "cosine": _variant(method=f"{METHODS}:Cosine"),
    "logit_adjusted": _variant(method=f"{METHODS}:LogitAdjusted"),
    "adjusted_balanced": _variant(method=f"{METHODS}:WithMargins"),
    "adjusted_balanced_solved": _variant(SOLVED, method=f"{METHODS}:WithMargins"),
    "dropout": _variant("learn.dropout=0.5"),
    "no_decay": _variant("learn.weight_decay=0.0"),
    "more_decay": _variant("learn.weight_decay=0.005"),
    "propagated": _variant("learn.features=propagated:2"),
    "propagated_solved": _variant("learn.features=propagated:2", SOLVED),
}
NAMES = {
    "ecgl": "`plus` as it was: `select: ecgl`",
    "random": "`select: random`",
    "herding": "`select: herding`, which all below have, too",
    "solved": "`last_layer: solved`",
    "solved_ecgl": "`last_layer: solved`, `select: ecgl`",
    "solved_random": "`last_layer: solved`, `select: random`",
    "solved_at_test": "as `solved`, but the next task goes on from the trained layer",
    "cosine": "cosine head, temperature 16",
    "logit_adjusted": "logit-adjusted loss in place of class weights",
    "adjusted_balanced": "logit-adjusted loss besides class weights",
    "adjusted_balanced_solved": "the same, and `last_layer: solved`",
    "dropout": "`dropout: 0.5`",
    "no_decay": "`weight_decay: 0`",
    "more_decay": "`weight_decay: 0.005`",
    "propagated": "`features: propagated:2`",
    "propagated_solved": "`features: propagated:2`, `last_layer: solved`",
}
"""In the order of the table."""


def render(rows: Sequence[dict[str, Any]]) -> str:
    """A table for each setting: a line for each variant, a column for each graph, own graphs and all seen in a cell."""
    parts = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        found = {(row["row"], row["graph"]): row for row in rows if row["setting"] == setting}
        graphs = [graph for graph in GRAPHS if any(graph == known for _, known in found)]
        lines = [f"{setting}", "", f"| | {' | '.join(graphs)} |", "|---|" + "---|" * len(graphs)]
        for name, title in NAMES.items():
            cells = [_cell(found.get((name, graph))) for graph in graphs]
            if any(cells):
                lines.append(f"| {title} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    own, seen = (f"{row[name]['mean']:.1f}±{row[name]['std']:.1f}" for name in ("aa", "aa_seen"))
    return f"{own} / {seen} ({row['aa']['n']})"


CASE = Case("ablation", __doc__, ROWS, num_seeds=3, score="valid", render=render)


if __name__ == "__main__":
    run_case(CASE)
