"""Every kind of learner on the real graphs, tested both ways: on each task's own graph, and on all that was seen.

    python -m bench.learners [--graphs ...] [--rows ...] [--settings class-il] [--seeds 0-4] [--epochs 100] [--jobs 2]
    python -m bench.learners --table       the tables of README.md, from the record

As ``bench.accuracy``, which has the graphs; the record is written after every run, and what is in it is not run again.
On a task's own graph a model is told which classes are near; on the graph of all nodes seen so far it is not.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.accuracy import Row
from bench.accuracy_command import Case, run_case
from ecgl_scale.units import format_bytes

BOTH = ("tasks.eval_scope=both",)
PLAIN = (*BOTH, "bank.select=ecgl", "learn.last_layer=trained", "learn.features=raw")
"""Rows that are compared with stay the same when a default of ``plus`` changes."""
AS_GCN = (*PLAIN, "learn.train_as=gcn")
ROWS: dict[str, Row] = {
    "analytic": Row("plus", "analytic", PLAIN),
    "plus": Row("plus", overrides=BOTH),
    "joint_mlp": Row("plus", "joint", PLAIN),
    "finetune": Row("plus", "finetune", PLAIN),
    "plus_ecgl": Row("plus", overrides=PLAIN),
    "paper": Row("paper", overrides=BOTH),
    "reference": Row("reference", overrides=BOTH),
    "ssm": Row("plus", "ssm", AS_GCN),
    "joint_gcn": Row("plus", "joint", AS_GCN),
    "cat": Row("plus", "cat", (*AS_GCN, "cat.steps=50")),
}
NAMES = {
    "finetune": "fine-tuning",
    "paper": "E-CGL `paper`",
    "reference": "E-CGL `reference`",
    "plus": "E-CGL `plus`",
    "plus_ecgl": "E-CGL `plus` as it was: `select: ecgl`, last layer trained",
    "ssm": "SSM (as GCN)",
    "cat": "CaT (as GCN, 50 encoders)",
    "analytic": "`analytic`",
    "joint_mlp": "joint, as MLP",
    "joint_gcn": "joint, as GCN",
}
"""In the order of the tables."""


def render(rows: Sequence[dict[str, Any]]) -> str:
    """A table for each graph and setting."""
    parts = []
    for graph, setting in dict.fromkeys((row["graph"], row["setting"]) for row in rows):
        found = {row["row"]: row for row in rows if (row["graph"], row["setting"]) == (graph, setting)}
        lines = [f"{graph}, {setting}", ""]
        lines += [
            "| | own graphs: AA / AF | all seen: AA / AF | seeds | processor s | peak |",
            "|---|---|---|---|---|---|",
        ]
        for name, title in NAMES.items():
            if name in found:
                row = found[name]
                cells = [_cell(row, "aa", "af"), _cell(row, "aa_seen", "af_seen"), str(row["aa"]["n"])]
                cells += [
                    f"{statistics.median(row.get('cpu_seconds', row['seconds'])['all']):.0f}",
                    format_bytes(int(max(row["peak_bytes"]["all"]))),
                ]
                lines.append(f"| {title} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(row: dict[str, Any], accuracy: str, forgetting: str) -> str:
    forgotten = row[forgetting]["mean"]
    return f"{row[accuracy]['mean']:.1f}±{row[accuracy]['std']:.1f}" + (
        "" if forgotten is None else f" / {forgotten:.1f}"
    )


CASE = Case("learners", __doc__, ROWS, num_seeds=5, score="test", render=render)


if __name__ == "__main__":
    run_case(CASE)
