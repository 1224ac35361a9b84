"""Which nodes to remember: E-CGL's own training with banks of several sizes, filled in every way there is.

    python -m bench.selection [--graphs ...] [--selects ...] [--budgets 20 50 100 300] [--seeds 0-4] [--epochs 100]
    python -m bench.selection --table      the table of README.md, from the record

Preset plus, class-IL, all else as in ``bench.accuracy``, whose record this one is like: what is in it is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from bench import accuracy, harness
from bench.accuracy import DATA, EPOCHS, Row, parse_seeds
from bench.accuracy_record import Job, Record
from ecgl_scale.config.choices import Select

CASE = "selection"
SETTING = "class-il"
SELECTS: tuple[str, ...] = get_args(Select)
BUDGETS = (20, 50, 100, 300)
ALL_ELSE = ("learn.last_layer=trained", "tasks.eval_scope=task")
"""As this record has had it from the beginning."""
GRAPHS = ("amazon_photo", "cora_ml", "amazon_computers", "coauthor_cs")


def make_jobs(
    graphs: Sequence[str],
    selects: Sequence[str],
    budgets: Sequence[int],
    seeds: Iterable[int],
    *,
    data: Path,
    work: Path,
    epochs: int,
) -> Iterator[Job]:
    """Every run that is wanted, one seed of all before the next seed."""
    rows = {
        f"{select}-{budget}": Row("plus", overrides=(f"bank.select={select}", f"bank.budget={budget}", *ALL_ELSE))
        for budget in budgets
        for select in selects
    }
    for seed in seeds:
        for graph in graphs:
            yield from accuracy.make_jobs([graph], rows, [SETTING], [seed], data=data, work=work, epochs=epochs)


def render(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each graph and budget, a column for each way to choose; the best in bold."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        bank = row["config"]["bank"]
        found.setdefault((row["graph"], bank["budget"]), {})[bank["select"]] = row["aa"]
    lines = [f"| graph, nodes a task | {' | '.join(SELECTS)} |", "|---|" + "---|" * len(SELECTS)]
    for (graph, budget), by_select in sorted(found.items()):
        best = max(by_select, key=lambda select: by_select[select]["mean"])
        cells = [_cell(by_select[select], is_best=select == best) if select in by_select else "" for select in SELECTS]
        lines.append(f"| {graph}, {budget} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(aa: dict[str, Any], *, is_best: bool) -> str:
    mark = "**" if is_best else ""
    return f"{mark}{aa['mean']:.1f}{mark} ± {aa['std']:.1f} ({aa['n']})"


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--selects", nargs="+", choices=SELECTS, default=list(SELECTS))
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS), help="Nodes remembered a task.")
    parser.add_argument("--seeds", type=parse_seeds, default=list(range(5)))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--again", action="store_true", help="Also what is in the record.")
    parser.add_argument("--table", action="store_true", help="Print the record as Markdown and run nothing.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / CASE)
    arguments = parser.parse_args()
    record = Record(CASE)
    if arguments.table:
        print(render(record.rows))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    jobs = make_jobs(
        arguments.graphs,
        arguments.selects,
        arguments.budgets,
        arguments.seeds,
        data=arguments.data,
        work=arguments.work,
        epochs=arguments.epochs,
    )
    accuracy.run(list(jobs), record, again=arguments.again)


if __name__ == "__main__":
    main()
