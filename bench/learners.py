"""Every kind of learner on the real graphs, tested both ways: on each task's own graph, and on all that was seen.

    python -m bench.learners [--graphs ...] [--rows ...] [--settings class-il] [--seeds 0-4] [--epochs 100] [--jobs 2]
    python -m bench.learners --table       the tables of README.md, from the record

As ``bench.accuracy``, which has the graphs; the record is written after every run, and what is in it is not run again.
On a task's own graph a model is told which classes are near; on the graph of all nodes seen so far it is not.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from bench import harness
from bench.accuracy import DATA, EPOCHS, GRAPHS, SETTINGS, Record, Row, make_jobs, parse_seeds, run
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.units import format_bytes

RECORD = "learners"
BOTH = ("tasks.eval_scope=both",)
PLAIN = (*BOTH, "bank.select=ecgl", "learn.features=raw")
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
    "plus_ecgl": "E-CGL `plus`, nodes by importance and diversity",
    "ssm": "SSM (as GCN)",
    "cat": "CaT (as GCN, 50 encoders)",
    "analytic": "`analytic`",
    "joint_mlp": "joint, as MLP",
    "joint_gcn": "joint, as GCN",
}
"""In the order of the tables."""


def render(rows: list[dict[str, Any]]) -> str:
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


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["class-il"])
    parser.add_argument("--seeds", type=parse_seeds, default=list(range(5)))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--jobs", type=int, default=1, help="Processes; the cores are shared among them.")
    parser.add_argument("--table", action="store_true", help="Print the record as Markdown and run nothing.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / "learners")
    arguments = parser.parse_args()
    if arguments.table:
        print(render(Record(RECORD).rows))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    jobs = make_jobs(
        arguments.graphs,
        {name: ROWS[name] for name in arguments.rows},
        arguments.settings,
        arguments.seeds,
        data=arguments.data,
        work=arguments.work,
        epochs=arguments.epochs,
        threads=max(available_cores() // arguments.jobs, 1),
    )
    run(list(jobs), Record(RECORD), processes=arguments.jobs)


if __name__ == "__main__":
    main()
