"""E-CGL, ER-GNN, SSM and CaT on a graph of Products' size, under one memory budget: time and peak of each.

    python -m bench.methods_products [--memory 4GiB] [--epochs 2] [--cat-steps 16] [--classes-per-task 10]
    python -m bench.methods_products --long     E-CGL with 20 epochs and the closed form, 23 tasks, under 2 GiB,
                                                tested at the end

``generate sbm --like products`` (2.45 M nodes, 124 M edges, 100 features), class-IL, 5,000 nodes remembered a task, as
the paper has it; there SSM and CaT run out of memory at two classes a task. Ten make tasks of half a million nodes,
five times as large. E-CGL is trained as MLP, the others as GCN on the task graphs. A few epochs tell time and memory,
not accuracy; what comes once a task (ranking, condensing) is told apart. Each run is a process of its own, one after
the other, on the same task graphs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save
from ecgl_scale.tasks.measures import seconds_per_test
from ecgl_scale.units import parse_bytes

AS_GCN = {"learn.train_as": "gcn"}
METHODS: dict[str, dict[str, Any]] = {
    "ecgl": {},
    "ecgl_gcn": {"method": "ecgl", **AS_GCN},
    "ergnn": {"method": "ergnn", **AS_GCN},
    "ssm": {"method": "ssm", **AS_GCN},
    "cat": {"method": "cat", "cat.nodes": 318, **AS_GCN},
    "analytic": {"method": "analytic", "analytic.width": 1024},
}
"""CaT's nodes a task are its paper's for Products."""


LIKE = ("--like", "products")
LONG: dict[str, Any] = {"memory": "2GiB", "epochs": 20, "cat_steps": 1, "classes_per_task": 2, "evaluate": "last"}
"""Tested once, at the end: after every task 276 tests of 23 tasks would be most of either run."""


def run(
    work: Path,
    graph: Sequence[str],
    *,
    memory: str,
    epochs: int,
    cat_steps: int,
    classes_per_task: int,
    evaluate: str = "all",
    methods: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Every method, or some, on one store, which is removed at the end."""
    store, config, out = work / "products.ecgl", work / "products.yaml", work / "run"
    shutil.rmtree(store, ignore_errors=True)
    info = json.loads(run_measured(ecgl("generate", "sbm", str(store), *graph, "--json")).stdout)
    config.write_text(
        yaml.safe_dump(
            {
                "store": str(store),
                "cache": str(work / "tasks"),
                "memory": memory,
                "tasks": {"classes_per_task": classes_per_task, "evaluate": evaluate},
                "learn": {"epochs": epochs, "hidden": [256]},
                "bank": {"budget": 5000},
                "cat": {"steps": cat_steps},
            }
        ),
        encoding="utf-8",
    )
    rows = {}
    for name in methods or METHODS:
        settings = METHODS[name]
        shutil.rmtree(out, ignore_errors=True)
        overrides = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
        measured = run_measured(ecgl("run", str(config), "--out", str(out), *overrides, "--json"))
        rows[name] = _row(json.loads(measured.stdout), measured.peak_anon_bytes, epochs)
        print(name, json.dumps({key: rows[name][key] for key in rows[name] if key != "stages"}), flush=True)
    for path in (store, work / "tasks", out):
        shutil.rmtree(path)
    budget = parse_bytes(memory)
    return {
        "num_nodes": info["num_nodes"],
        "num_edges": info["num_edges"],
        "budget_bytes": budget,
        "epochs": epochs,
        "cat_steps": cat_steps,
        "classes_per_task": classes_per_task,
        "evaluate": evaluate,
        "methods": rows,
        "all_within_budget": all(row["peak_anon_bytes"] <= 1.1 * budget for row in rows.values()),
    }


def _row(results: dict[str, Any], peak_bytes: int, epochs: int) -> dict[str, Any]:
    stages, tasks = results["stages"], results["num_tasks"]
    seconds = {name: stage["seconds"] for name, stage in stages.items()}
    return {
        "num_tasks": tasks,
        "seconds": sum(seconds.values()),
        "learn_seconds": seconds["train"] + seconds.get("remember", 0.0),
        "train_seconds_per_epoch": seconds["train"] / (tasks * epochs),
        "remember_seconds_per_task": seconds.get("remember", 0.0) / tasks,
        "evaluate_seconds_per_test": seconds_per_test(results),
        "peak_anon_bytes": peak_bytes,
        "aa": results["aa"],
        "stages": stages,
    }


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cat-steps", type=int, default=16)
    parser.add_argument("--classes-per-task", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS))
    parser.add_argument("--long", action="store_true", help="The closed form beside E-CGL, 23 tasks under 2 GiB.")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK / "products")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.long:
        result = run(given.work, LIKE, methods=given.methods or ["ecgl", "analytic"], **LONG)
        save("methods_products_long", result)
        return
    result = run(
        given.work,
        LIKE,
        memory=given.memory,
        epochs=given.epochs,
        cat_steps=given.cat_steps,
        classes_per_task=given.classes_per_task,
        methods=given.methods,
    )
    save("methods_products", result)


if __name__ == "__main__":
    main()
