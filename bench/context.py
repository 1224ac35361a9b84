"""Papers100M as it is: a graph like it, 1.4 % of its nodes with labels, learned with unlabelled neighbours and without.

``python -m bench.context [--share 0.1] [--memory 4GiB] [--epochs 20] [--contexts none hops:1 hops:2] [--work DIR]``

A block model with the share of nodes and edges, 128 float16 features and 172 classes, made by ``generate sbm --like
papers100m``, goes through ``generate``, ``plan`` and ``run`` with ``configs/papers100m.yaml``, once for each
``tasks.context``; the bank has the same share of its 5,000 nodes a task. Each command is a process of its own under the
budget; seconds, peaks and bytes are those of the commands, accuracies those of their results.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save
from ecgl_scale.units import MIB

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "papers100m.yaml"
BANK_NODES = 5000


def measure(
    work: Path,
    *,
    share: float,
    memory: str,
    epochs: int,
    contexts: list[str],
    more: tuple[str, ...] = (),
    on_run: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """The store, and a run for each context; ``on_run`` is given what there is so far, as a case takes minutes."""
    store = work / "papers.ecgl"
    size = ("--like", "papers100m", "--share", str(share), "--feature-dtype", "float16", "--memory", memory)
    made = run_measured(ecgl("--quiet", "generate", "sbm", str(store), *size))
    about = json.loads(run_measured(ecgl("info", str(store), "--json")).stdout)
    found: dict[str, Any] = {
        "share": share,
        "memory": memory,
        "epochs": epochs,
        "num_nodes": about["num_nodes"],
        "num_edges": about["num_edges"],
        "store_bytes": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()),
        "generate": {"seconds": made.seconds, "peak_bytes": made.peak_anon_bytes},
        "runs": {},
    }
    bank = max(round(share * BANK_NODES), 1)
    for context in contexts:
        sets = [f"store={store}", f"tasks.context={context}", f"learn.epochs={epochs}", f"bank.budget={bank}", *more]
        options = [*(item for key in sets for item in ("--set", key)), "--memory", memory]
        found["runs"][context] = _run(work, options)
        on_run(found)
    return found


def _run(work: Path, options: list[str]) -> dict[str, Any]:
    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    planned = run_measured(ecgl("--quiet", "plan", str(CONFIG), *options, "--json"))
    plan = json.loads(planned.stdout)
    ran = run_measured(ecgl("--quiet", "run", str(CONFIG), "--out", str(out), *options))
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    graphs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("tasks/*.ecgl/manifest.json"))]
    found = {
        "plan_seconds": planned.seconds,
        "planned_peak_bytes": plan["peak_bytes"],
        "planned_seconds": plan["seconds"],
        "seconds": ran.seconds,
        "peak_bytes": ran.peak_anon_bytes,
        "aa": results["aa"],
        "af": results["af"],
        "num_tasks": results["num_tasks"],
        "labelled_nodes": sum(task["num_nodes"] for task in results["tasks"]),
        "graph_nodes": sum(graph["num_nodes"] for graph in graphs),
        "graph_edges": sum(graph["edges"]["num_edges"] for graph in graphs),
        "graph_bytes": sum(path.stat().st_size for path in out.glob("tasks/**/*") if path.is_file()),
        "stages": results["stages"],
    }
    shutil.rmtree(out)
    return found


def table(record: dict[str, Any]) -> str:
    """The rows that bench/README.md has of a record."""
    lines = []
    for context, run in record["runs"].items():
        stages = run["stages"]
        seconds = ", ".join(f"{stages[name]['seconds']:,.0f}" for name in ("extract", "train", "remember", "evaluate"))
        sizes = f"{run['graph_nodes']:,} | {run['graph_edges']:,}"
        peaks = f"{run['peak_bytes'] / MIB:,.0f} of {run['planned_peak_bytes'] / MIB:,.0f}"
        scores = f"{run['aa']:.1f} | {run['af']:.1f}"
        times = f"{run['plan_seconds']:.1f} | {run['seconds']:,.0f} ({seconds})"
        lines.append(f"| `{context}` | {sizes} | {scores} | {times} | {peaks} |")
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--contexts", nargs="+", default=["none", "hops:1", "hops:2"])
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--record", default="context", help="name of the record")
    given = parser.parse_args()
    work = given.work / "context"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        chosen = {"share": given.share, "memory": given.memory, "epochs": given.epochs, "contexts": given.contexts}
        print(table(measure(work, **chosen, on_run=partial(save, given.record))))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
