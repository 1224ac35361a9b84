"""The memory plan of a run against what was measured: every stage, three sizes, every method.

    python -m bench.plan_peaks [--nodes 50000 200000 800000] [--memory 2GiB] [--tight 640MiB] [--only TEXT]

Block-model graphs of 100 dense features and 10 classes, 2 tasks of 5; one with 8,710 sparse features. Every run is a
process of its own. Planned and measured are what ``results.json`` has of each stage: RssAnon + RssShmem, sampled every
5 ms, with what the process holds anyhow. Wanted is a peak between 0.5 and 1.1 of its plan. Epochs, sweeps of PageRank
and CaT's encoders are few, as memory does not grow with them. ``--only`` measures the cases whose name has this in it,
and keeps the record of all others.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import DEFAULT_WORK, RESULTS, ecgl, run_measured, save
from ecgl_scale.engine.resources import Resources
from ecgl_scale.learn.method.table import built_in_methods
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.sbm import sbm_source

LOW, HIGH = 0.5, 1.1
CLASSES, FEATURES, DEGREE = 10, 100, 16.0
SPARSE_NODES, SPARSE_FEATURES = 20_000, 8_710
FEW = ("tasks.classes_per_task=5", "learn.epochs=2", "rank.max_iter=4", "cat.steps=16")
GROWING = ("tasks.inter_task_edges=true",)
VARIANTS = (
    ("gem", "learn.train_as=gcn"),
    ("joint", "learn.train_as=gcn"),
    ("twp", "learn.train_as=gcn"),
    ("continualgnn", *GROWING),
    ("ecgl", "learn.features=propagated:2"),
    ("ecgl", "rank.features=logits"),
    ("ecgl", *GROWING, "tasks.eval_scope=seen"),
    ("ecgl", "learn.hidden=[512,256]", "learn.dropout=0.5"),
)
"""Besides each method as it is: where other things are held."""


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    store: Path
    num_nodes: int
    memory: str
    overrides: tuple[str, ...]


def run(work: Path, sizes: Sequence[int], memory: str, tight: str, only: str = "") -> dict[str, Any]:
    """All runs, or some."""
    stores = {size: work / f"peaks-{size}.ecgl" for size in sizes}
    sparse = work / "peaks-sparse.ecgl"
    cases = [case for case in _cases(stores, sparse, memory, tight) if only in case.name]
    wanted = {case.store for case in cases}
    for size, store in stores.items():
        if store in wanted:
            _build(store, size)
    if sparse in wanted:
        _build(sparse, min(SPARSE_NODES, max(sizes)), sparse=True)
    rows = [row for case in cases for row in _measure(case, work)]
    for store in wanted:
        shutil.rmtree(store)
    return {"classes": CLASSES, "features": FEATURES, "average_degree": DEGREE, "set": FEW, **judged(rows)}


def judged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All rows, and which of them are not as they should be."""
    outside = [row for row in rows if not LOW <= row["ratio"] <= HIGH]
    return {
        "wanted": [LOW, HIGH],
        "smallest_ratio": min(row["ratio"] for row in rows),
        "largest_ratio": max(row["ratio"] for row in rows),
        "outside": [f"{row['case']}, {row['num_nodes']} nodes, {row['stage']}: {row['ratio']:.2f}" for row in outside],
        "rows": list(rows),
    }


def _build(path: Path, num_nodes: int, *, sparse: bool = False) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    num_features = SPARSE_FEATURES if sparse else FEATURES
    source = sbm_source(
        num_nodes=num_nodes, num_classes=CLASSES, num_features=num_features, average_degree=DEGREE, sparse=sparse
    )
    build_store(source, path, Resources.of(), options=BuildOptions(symmetrise=True))
    return path


def _cases(stores: dict[int, Path], sparse: Path, memory: str, tight: str) -> list[Case]:
    found = []
    for size, store in stores.items():
        found += [Case(f"ecgl as {kind}", store, size, memory, (f"learn.train_as={kind}",)) for kind in ("mlp", "gcn")]
    middle, largest = sorted(stores)[len(stores) // 2], max(stores)
    found.append(Case(f"ecgl as mlp, {tight}", stores[largest], largest, tight, ()))
    sparse_nodes = min(SPARSE_NODES, largest)
    found += [
        Case(f"ecgl as {kind}, sparse", sparse, sparse_nodes, memory, (f"learn.train_as={kind}",))
        for kind in ("mlp", "gcn")
    ]
    found += [
        Case(name, stores[middle], middle, memory, (f"method={name}",)) for name in built_in_methods() if name != "ecgl"
    ]
    for method, *others in VARIANTS:
        name = f"{method}, {' '.join(others)}"
        found.append(Case(name, stores[middle], middle, memory, (f"method={method}", *others)))
    return found


def _measure(case: Case, work: Path) -> list[dict[str, Any]]:
    out = work / "peaks-run"
    shutil.rmtree(out, ignore_errors=True)
    config = work / "peaks.yaml"
    config.write_text(json.dumps({"store": str(case.store), "memory": case.memory}), encoding="utf-8")
    sets = [part for override in (*FEW, *case.overrides) for part in ("--set", override)]
    done = run_measured(ecgl("run", str(config), "--out", str(out), "--json", *sets))
    stages = json.loads(done.stdout)["stages"]
    rows = [_row(case, name, stage["planned_bytes"], stage["peak_bytes"]) for name, stage in stages.items()]
    shutil.rmtree(out)
    return rows


def _row(case: Case, stage: str, planned: int, peak: int) -> dict[str, Any]:
    ratio = peak / planned
    mark = "" if LOW <= ratio <= HIGH else "  <-- outside"
    sizes = f"{planned / 2**20:7.0f} planned {peak / 2**20:7.0f} measured"
    print(f"{case.name:45} {case.num_nodes:>8} {stage:9} {sizes} {ratio:5.2f}{mark}", flush=True)
    return {
        "case": case.name,
        "num_nodes": case.num_nodes,
        "memory": case.memory,
        "stage": stage,
        "planned_bytes": planned,
        "peak_bytes": peak,
        "ratio": ratio,
    }


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--tight", default="640MiB", help="a second budget for the largest graph")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    found = run(arguments.work, arguments.nodes, arguments.memory, arguments.tight, arguments.only)
    record = RESULTS / "plan_peaks.json"
    if arguments.only and record.exists():
        anew = {row["case"] for row in found["rows"]}
        before = json.loads(record.read_text(encoding="utf-8"))["rows"]
        found |= judged([*(row for row in before if row["case"] not in anew), *found["rows"]])
    save("plan_peaks", found)


if __name__ == "__main__":
    main()
