"""The command line that ``bench.learners`` and ``bench.ablation`` share: which runs are wanted, or the table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness
from bench.accuracy import DATA, EPOCHS, GRAPHS, SETTINGS, Row, make_jobs, parse_seeds, run
from bench.accuracy_record import Record
from ecgl_scale.engine.threads import available_cores


@dataclass(frozen=True)
class Case:
    """Rows that are run on the graphs of ``bench.accuracy``, each result into one record."""

    name: str
    description: str | None
    rows: dict[str, Row]
    num_seeds: int
    score: str
    """``test`` or ``valid``: the nodes that are scored."""
    render: Callable[[Sequence[dict[str, Any]]], str]


def run_case(case: Case, command: Sequence[str] | None = None) -> None:
    """Do what the command line asks for, and keep the record."""
    parser = argparse.ArgumentParser(description=case.description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--rows", nargs="+", choices=list(case.rows), default=list(case.rows))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["class-il"])
    parser.add_argument("--seeds", type=parse_seeds, default=list(range(case.num_seeds)))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--jobs", type=int, default=1, help="Processes; the cores are shared among them.")
    parser.add_argument("--threads", type=int, help="Of a process; the cores by its number of processes if not given.")
    parser.add_argument("--table", action="store_true", help="Print the record as Markdown and run nothing.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / case.name)
    arguments = parser.parse_args(command)
    if arguments.table:
        print(case.render(Record(case.name).rows))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    jobs = make_jobs(
        arguments.graphs,
        {name: case.rows[name] for name in arguments.rows},
        arguments.settings,
        arguments.seeds,
        data=arguments.data,
        work=arguments.work,
        epochs=arguments.epochs,
        score=case.score,
        threads=arguments.threads or max(available_cores() // arguments.jobs, 1),
    )
    run(list(jobs), Record(case.name), processes=arguments.jobs)
