"""Real growth: a run on what there was first, then an append and an update for each arrival.

The chain of updates is compared with one ``ecgl run`` on the whole, which must give the same accuracies, and with
retraining on all data so far (``method: joint``). Every step is an ``ecgl`` command, timed from outside.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.growth.parts import ARRIVAL, Array, Arriving, by_classes, by_release
from bench.harness import Measured, ecgl, run_measured

SAME = ("matrix", "matrix_micro", "aa_after_each_task", "af_after_each_task", "final_losses")
BY_TIME = {"kind": "time", "column": ARRIVAL}


@dataclass(frozen=True)
class Case:
    """A graph, when its parts arrive, and the tasks of a run on the whole."""

    file: str
    arrivals: Callable[[Any], tuple[Array, Array]]
    tasks: dict[str, Any]
    budget: int


CASES = {
    "debian_packages by release": Case("debian_packages", by_release, BY_TIME, 500),
    "amazon_computers by classes": Case("amazon_computers", by_classes, {"classes_per_task": 2}, 300),
}


def grow(case: Case, data: Path, work: Path, epochs: int) -> dict[str, Any]:
    """The table of a case: a row for each arrival."""
    graph = Arriving.of(data / f"{case.file}.npz", case.arrivals)
    store, model = work / "growing.ecgl", work / "model"
    ingested = _ecgl("ingest", "npz", graph.write(0, work / "part.npz"), store, "--symmetrise", "--json")
    config = _write_config(work, case, store, epochs)
    learned = _ecgl("run", config, "--out", model, "--json")
    rows = [_row(0, ingested, learned)]
    for part in range(1, graph.num_parts):
        appended = _ecgl("append", "npz", graph.write(part, work / "part.npz"), store, "--json")
        learned = _ecgl("update", model, store, "--out", model, "--json")
        rows.append(_row(part, appended, learned))
    chain = json.loads(learned.stdout)
    whole_store = work / "whole.ecgl"
    ingest = _ecgl("ingest", "npz", graph.write_whole(work / "part.npz"), whole_store, "--symmetrise", "--json")
    asked = ("--set", f"store={whole_store}")
    run = _ecgl("run", config, *asked, "--out", work / "run", "--json")
    whole = json.loads(run.stdout)
    different = [name for name in SAME if whole[name] != chain[name]]
    if different:
        raise RuntimeError(f"{case.file}: the updates and the run on the whole differ in {', '.join(different)}")
    joint = _joint(work, (config, *asked))
    for row, retrained in zip(rows, joint, strict=True):
        row.update(retrained)
    for path in (store, model, whole_store, work / "run"):
        shutil.rmtree(path)
    return {
        "epochs": epochs,
        "num_late_edges": graph.count_late(),
        "rows": rows,
        "whole": {"ingest_seconds": ingest.seconds, "run_seconds": run.seconds, "aa": whole["aa"], "af": whole["af"]},
        "same_as_whole": list(SAME),
    }


def _joint(work: Path, command: tuple[object, ...]) -> list[dict[str, Any]]:
    """Retraining at each arrival on all there is by then: a task of ``joint``, without the start of a process."""
    run = _ecgl("run", *command, "--set", "method=joint", "--out", work / "joint", "--json")
    results = json.loads(run.stdout)
    seconds = _seconds_of_tasks(work / "joint" / "events.jsonl")
    shutil.rmtree(work / "joint")
    columns = (seconds, results["aa_after_each_task"], results["af_after_each_task"])
    names = ("joint_seconds", "joint_aa", "joint_af")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _seconds_of_tasks(events: Path) -> list[float]:
    """From the beginning of each task to its end."""
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    starts, stops = (
        [line["time"] for line in lines if line["event"] == kind] for kind in ("TaskStarted", "TaskFinished")
    )
    return [stop - start for start, stop in zip(starts, stops, strict=True)]


def _write_config(work: Path, case: Case, store: Path, epochs: int) -> Path:
    path = work / "growing.yaml"
    config = {
        "store": str(store),
        "tasks": case.tasks,
        "learn": {"hidden": [256], "epochs": epochs},
        "bank": {"budget": case.budget},
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def _row(part: int, came: Measured, learned: Measured) -> dict[str, Any]:
    store, results = json.loads(came.stdout), json.loads(learned.stdout)
    return {
        "part": part,
        "num_new_nodes": store.get("new_nodes", store["num_nodes"]),
        "num_new_edges": store.get("new_edges", store["num_edges"]),
        "append_seconds": came.seconds,
        "append_bytes": store.get("written_bytes", store["total_bytes"]),
        "update_seconds": learned.seconds,
        "update_bytes": learned.written_bytes,
        "aa": results["aa"],
        "af": results["af"],
    }


def _ecgl(*arguments: object) -> Measured:
    return run_measured(ecgl(*map(str, arguments)))
