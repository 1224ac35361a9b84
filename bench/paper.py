"""Every table and figure of the paper with our own numbers, from one command: all sweeps of ``configs/paper``.

    python -m bench.paper [--graph coauthor_cs] [--epochs 20] [--seeds 0-1] [--jobs 2]

Each file is one ``ecgl sweep`` at fewer epochs and seeds than the paper's; one ``ecgl report`` then shows them all. The
sweeps' directories are kept: the same command goes on with them. The record holds the means of every combination.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.accuracy import DATA, GRAPHS, ingest

CONFIGS = Path(__file__).parents[1] / "configs" / "paper"
MEASURES = ("aa", "af", "train_ms_per_epoch", "inference_ms")


def run(store: Path, work: Path, overrides: Sequence[str], *, seeds: str, jobs: int) -> dict[str, Any]:
    """All sweeps, then the report of all of them."""
    found = {}
    for config in sorted(CONFIGS.glob("*.yaml")):
        out, text = work / config.stem, config.read_text(encoding="utf-8")
        wanted = [key for key in overrides if f"{key.partition('=')[0]}:" not in text]  # a grid keeps its own
        options = [word for key in (f"store={store}", *wanted) for word in ("--set", key)]
        if "jobs:" not in text:  # a table of times says itself: one at a time
            options += ["--jobs", str(jobs)]
        command = harness.ecgl("sweep", str(config), *options, "--seeds", seeds, "--out", str(out))
        subprocess.run(command, check=True)
        found[config.stem] = _rows(json.loads((out / "sweep.json").read_text(encoding="utf-8")))
    page = work / "paper.html"
    subprocess.run(harness.ecgl("report", *(str(work / name) for name in found), "--html", str(page)), check=True)
    return {"overrides": list(overrides), "seeds": seeds, "report_bytes": page.stat().st_size, "sweeps": found}


def _rows(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": row["name"], **{name: None if row[name] is None else row[name]["mean"] for name in MEASURES}}
        for row in sweep["combinations"]
    ]


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=list(GRAPHS), default="coauthor_cs")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--cat-steps", type=int, default=50)
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / "paper")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    store = ingest(given.graph, given.data, given.work).absolute()
    of_graph = GRAPHS[given.graph]
    budget = f"bank.budget={of_graph.budget}"
    overrides = [f"learn.epochs={given.epochs}", f"cat.steps={given.cat_steps}", budget, *of_graph.tasks]
    result = run(store, given.work, overrides, seeds=given.seeds, jobs=given.jobs)
    harness.save("paper", {"graph": given.graph, **result})


if __name__ == "__main__":
    main()
