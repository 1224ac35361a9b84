"""The time that ``ecgl plan`` estimates against what a run takes: real and generated graphs, as MLP and as GCN.

    python -m bench.plan_time [--data ../shared/data] [--nodes 200000] [--repeats 3] [--only TEXT]

Estimated and measured are the seconds of all stages together. Plan and run are processes of their own, and of each
the shortest repeat counts, as others use this machine too; nothing is cached between runs. Wanted is an estimate
between half and twice what was measured. The costs in ``pipeline/estimate.py`` were set on the runs that are not
marked as ``checks``. ``--only`` measures the cases whose name has this in it, and keeps no record.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accuracy import DATA
from bench.harness import DEFAULT_WORK, ecgl, run_measured, save
from ecgl_scale.engine.resources import Resources
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.sources.sbm import SbmSettings, sbm_source

LOW, HIGH = 0.5, 2.0
CLASSES, FEATURES, DEGREE = 10, 100, 16.0
GENERATED = "generated"


@dataclass(frozen=True)
class Case:
    """One run, with the config's defaults but these."""

    graph: str
    method: str
    train_as: str
    epochs: int = 200
    threads: int | None = None
    checks: bool = False
    """Not looked at when the costs were set."""

    @property
    def name(self) -> str:
        """As people say it."""
        threads = "" if self.threads is None else f", {self.threads} thread"
        return f"{self.graph}: {self.method} as {self.train_as}, {self.epochs} epochs{threads}"

    @property
    def overrides(self) -> list[str]:
        """For ``--set``."""
        found = [f"method={self.method}", f"learn.train_as={self.train_as}", f"learn.epochs={self.epochs}"]
        return found if self.threads is None else [*found, f"threads={self.threads}"]


CASES = (
    Case("amazon_computers", "finetune", "gcn", 40, threads=1),
    Case("amazon_computers", "finetune", "gcn", 40),
    Case("amazon_computers", "ecgl", "mlp", 100),
    Case("coauthor_cs", "ecgl", "mlp", 100),
    Case("coauthor_cs", "ecgl", "gcn", 40),
    Case(GENERATED, "ecgl", "mlp", 50),
    Case(GENERATED, "ecgl", "gcn", 10),
    Case("amazon_computers", "joint", "mlp", 100, checks=True),
    Case("cora_ml", "ecgl", "gcn", 100, checks=True),
)


def run(work: Path, data: Path, num_nodes: int, repeats: int, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """All runs."""
    stores = {graph: _build(graph, work, data, num_nodes) for graph in dict.fromkeys(case.graph for case in cases)}
    rows = [_measure(case, stores[case.graph], work, repeats) for case in cases]
    for store in stores.values():
        shutil.rmtree(store)
    generated = {"num_nodes": num_nodes, "classes": CLASSES, "features": FEATURES, "average_degree": DEGREE}
    return {"repeats": repeats, GENERATED: generated, **judged(rows)}


def judged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All rows, and which of them are not as they should be."""
    return {
        "wanted": [LOW, HIGH],
        "smallest_ratio": min(row["ratio"] for row in rows),
        "largest_ratio": max(row["ratio"] for row in rows),
        "outside": [f"{row['case']}: {row['ratio']:.2f}" for row in rows if not LOW <= row["ratio"] <= HIGH],
        "rows": list(rows),
    }


def _build(graph: str, work: Path, data: Path, num_nodes: int) -> Path:
    path = work / f"time-{graph}.ecgl"
    shutil.rmtree(path, ignore_errors=True)
    if graph == GENERATED:
        source = sbm_source(
            SbmSettings(num_nodes=num_nodes, num_classes=CLASSES, num_features=FEATURES, average_degree=DEGREE)
        )
        build_store(source, path, Resources.of(), options=BuildOptions(symmetrise=True))
    else:
        build_store(open_npz_source(data / f"{graph}.npz"), path, Resources.of())
    return path


def _measure(case: Case, store: Path, work: Path, repeats: int) -> dict[str, Any]:
    config, out = work / "time.yaml", work / "time-run"
    config.write_text(json.dumps({"store": str(store)}), encoding="utf-8")
    sets = [part for override in case.overrides for part in ("--set", override)]
    estimates, runs = [], []
    for _ in range(repeats):
        plan = json.loads(run_measured(ecgl("plan", str(config), "--json", *sets)).stdout)
        estimates.append({stage["stage"]: stage["seconds"] for stage in plan["stages"]})
        shutil.rmtree(out, ignore_errors=True)
        found = json.loads(run_measured(ecgl("run", str(config), "--out", str(out), "--json", *sets)).stdout)
        runs.append({name: stage["seconds"] for name, stage in found["stages"].items()})
        shutil.rmtree(out)
    estimated, measured = (min(several, key=lambda one: sum(one.values())) for several in (estimates, runs))
    ratio = sum(estimated.values()) / sum(measured.values())
    mark = "" if LOW <= ratio <= HIGH else "  <-- outside"
    shown = f"{sum(estimated.values()):7.1f} s estimated {sum(measured.values()):7.1f} s measured"
    print(f"{case.name:50} {shown} {ratio:5.2f}{mark}", flush=True)
    return {
        "case": case.name,
        "checks": case.checks,
        "estimated_seconds": sum(estimated.values()),
        "measured_seconds": sum(measured.values()),
        "ratio": ratio,
        "stages": {name: {"estimated": estimated[name], "measured": measured[name]} for name in estimated},
        "all_estimated": [sum(one.values()) for one in estimates],
        "all_measured": [sum(one.values()) for one in runs],
    }


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    cases = [case for case in CASES if arguments.only in case.name]
    found = run(arguments.work, arguments.data, arguments.nodes, arguments.repeats, cases)
    if not arguments.only:
        save("plan_time", found)


if __name__ == "__main__":
    main()
