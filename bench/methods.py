"""Every method on the same streams, both settings, five seeds: accuracy, time, what it keeps and its peak memory.

    python -m bench.methods [--graphs ...] [--methods ...] [--settings ...] [--seeds 0-4] [--jobs 2]
    python -m bench.methods --reasons    one setting changed at a time, where a method is not between the bounds
    python -m bench.methods --table      the tables of README.md, from the records

One ``ecgl sweep`` a graph. All methods have the features, the normalisation and the loss of the preset ``plus``, and
are trained as GCN on the task graph, as in their papers; ``ecgl`` is trained as MLP, and once more as GCN. Their own
settings are their papers', but for CaT's steps. The sweep's directory is kept: the same command goes on with it.
Times are those of runs beside each other, unless ``--jobs 1``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import harness
from bench.accuracy import DATA, GRAPHS, SETTINGS, ingest
from bench.methods_table import render
from ecgl_scale.learn.method.table import built_in_methods

AS_GCN = {"learn.train_as": "gcn"}
METHODS: dict[str, dict[str, Any]] = {
    "finetune": {"method": "finetune", **AS_GCN},
    "joint": {"method": "joint", **AS_GCN},
    "ecgl": {"method": "ecgl"},
    "ecgl_gcn": {"method": "ecgl", **AS_GCN},
    "ergnn": {"method": "ergnn", **AS_GCN},
    "ssm": {"method": "ssm", **AS_GCN},
    "lwf": {"method": "lwf", **AS_GCN},
    "ewc": {"method": "ewc", **AS_GCN},
    "mas": {"method": "mas", **AS_GCN},
    "gem": {"method": "gem", **AS_GCN},
    "twp": {"method": "twp", **AS_GCN},
    "dygrain": {"method": "dygrain", **AS_GCN},
    "continualgnn": {"method": "continualgnn", **AS_GCN},
    "cat": {"method": "cat", "cat.steps": 50, **AS_GCN},
    "analytic": {"method": "analytic"},
}
REASONS: dict[str, dict[str, Any]] = {
    "continualgnn, unbalanced": {**METHODS["continualgnn"], "learn.balance": "none"},
    "continualgnn, 5,000 nodes": {**METHODS["continualgnn"], "continualgnn.memory_nodes": 5000},
    "continualgnn, lambda 0": {**METHODS["continualgnn"], "continualgnn.lambda": 0},
    "dygrain, 7,500 nodes": {**METHODS["dygrain"], "dygrain.nodes": 7500},
    "dygrain, truth alone": {**METHODS["dygrain"], "dygrain.truth": 1.0},
    **{
        f"{name}, 50 epochs": {**METHODS[name], "learn.epochs": 50}
        for name in ("finetune", "joint", "ecgl", "ssm", "gem", "dygrain")
    },
    "gem, reference": {**METHODS["gem"], "gem.reference": True},
    "gem, unbalanced": {**METHODS["gem"], "learn.balance": "none"},
    "twp, a hundredth": {**METHODS["twp"], "twp.lambda_loss": 100, "twp.lambda_topology": 100},
}
"""A method with one setting changed: what explains its row, and what does not."""
VARIANTS = {**METHODS, **REASONS}
RECORDS = ("methods", "methods_reasons")
EPOCHS = {"coauthor_cs": 30, "amazon_computers": 50, "debian_packages": 10}
"""A task; so few that all runs take two hours here. debian has 15 tasks."""


def write_config(graph: str, methods: Sequence[str], settings: Sequence[str], *, store: Path, path: Path) -> None:
    """The config of a graph's sweep."""
    of_graph = GRAPHS[graph]
    keys = {key.removeprefix("tasks."): yaml.safe_load(value) for key, value in (t.split("=") for t in of_graph.tasks)}
    config = {
        "store": str(store),
        "preset": "plus",
        "tasks": keys,
        "learn": {"epochs": EPOCHS[graph], "last_layer": "trained"},
        "bank": {"budget": of_graph.budget, "select": "ecgl"},
        "sweep": {"variants": {name: VARIANTS[name] for name in methods}, "grid": {"setting": list(settings)}},
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def collect(graph: str, directory: Path) -> list[dict[str, Any]]:
    """A row for each method and setting that has finished runs."""
    sweep = json.loads((directory / "sweep.json").read_text(encoding="utf-8"))
    rows = []
    for combination in sweep["combinations"]:
        finished = [run for run in combination["runs"] if run["status"] == "finished"]
        if finished:
            kept = [_kept_bytes(directory / run["path"]) for run in finished]
            tasks_bytes = _old_tasks_bytes(combination["settings"]["method"], directory / "tasks")
            measures = {name: combination[name] for name in ("aa", "af", "train_ms_per_epoch", "inference_ms")}
            rows.append(
                {
                    "graph": graph,
                    "method": combination["variant"],
                    "setting": combination["setting"],
                    "settings": combination["settings"],
                    "epochs": EPOCHS[graph],
                    "seeds": [run["seed"] for run in finished],
                    **measures,
                    "kept_bytes": statistics.fmean(kept) + tasks_bytes,
                    "peak_bytes": max(run["peak_bytes"] for run in finished),
                    "failed": [run["message"] for run in combination["runs"] if run["status"] == "failed"],
                }
            )
    return rows


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["graph"], row["method"], row["setting"]


def _kept_bytes(run: Path) -> int:
    """Bytes on disk of the bank and of the method's own state after the last task."""
    weights = run / "weights"
    states = sorted(weights.glob("method-*.safetensors"), key=lambda path: int(path.stem.split("-")[1]))
    kept = (run / "bank.arrow", *states[-1:], *weights.glob("sums-*.safetensors"))
    return sum(path.stat().st_size for path in kept if path.exists())


def _old_tasks_bytes(method: str, tasks: Path) -> int:
    """Bytes on disk of the old tasks' graphs and rows, for a method that cannot do without them."""
    found = built_in_methods()[method]
    if not found.keeps_tasks and not found.keeps_graphs:
        return 0
    return sum(path.stat().st_size for path in tasks.rglob("*") if path.is_file())


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    parser.add_argument("--methods", nargs="+", choices=list(VARIANTS))
    parser.add_argument("--reasons", action="store_true", help="Run the variants that explain rows, not the methods.")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="Print the records as Markdown and run nothing.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / "methods")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n\n".join(render(rows) for rows in map(_rows_of, RECORDS) if rows))
        return
    record, known_names = RECORDS[arguments.reasons], (METHODS, REASONS)[arguments.reasons]
    names = [name for name in arguments.methods or known_names if name in known_names]
    rows = _rows_of(record)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for graph in arguments.graphs:
        config, out = arguments.work / f"{graph}.yaml", arguments.work / graph
        store = ingest(graph, arguments.data, arguments.work).absolute()
        write_config(graph, names, arguments.settings, store=store, path=config)
        options = ["--seeds", arguments.seeds, "--jobs", str(arguments.jobs), "--out", str(out)]
        done = subprocess.run(harness.ecgl("sweep", str(config), *options), check=False)
        found = collect(graph, out)
        known = {_key(row) for row in found}
        rows = [row for row in rows if _key(row) not in known] + found
        harness.save(record, {"accuracy": "macro, percent, test nodes", "rows": rows})
        if done.returncode:
            sys.exit(done.returncode)


def _rows_of(record: str) -> list[dict[str, Any]]:
    path = harness.RESULTS / f"{record}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


if __name__ == "__main__":
    main()
