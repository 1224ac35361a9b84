"""What a sweep leaves: ``sweep.json`` and ``sweep.csv``, written again when a run starts and when it ends.

ms an epoch and ms a test are those of the report: ``seconds_per_epoch`` and ``seconds_per_test``.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.config.sweep import Combination, Sweep, shown_value
from ecgl_scale.learn.method.table import method_class
from ecgl_scale.session.directory import read_results
from ecgl_scale.tasks.measures import Spread, seconds_per_epoch, seconds_per_test

RECORD_NAME = "sweep.json"
TABLE_NAME = "sweep.csv"
RECORD_VERSION = 1
MEASURES = ("aa", "af", "aa_seen", "af_seen", "train_ms_per_epoch", "inference_ms", "seconds", "peak_bytes")

Status = Literal["waiting", "running", "finished", "stopped", "failed"]


@dataclass
class SweepRun:
    """A combination with a seed, and how far it is."""

    combination: Combination
    seed: int
    path: Path
    status: Status = "waiting"
    exit_code: int | None = None
    message: str | None = None

    @property
    def name(self) -> str:
        """The name of its directory within the sweep's."""
        return f"{self.combination.name}/{self.path.name}"


def make_record(sweep: Sweep, runs: list[SweepRun], *, config: Path, jobs: int) -> dict[str, Any]:
    """The content of ``sweep.json``."""
    return {
        "version": RECORD_VERSION,
        "config": str(config),
        "grid": sweep.grid,
        "variants": sweep.variants,
        "seeds": list(sweep.seeds),
        "jobs": jobs,
        "combinations": [
            _summary(combination, [run for run in runs if run.combination is combination])
            for combination in sweep.combinations
        ],
    }


def write_record(directory: Path, record: dict[str, Any]) -> None:
    """Write ``sweep.json`` and ``sweep.csv``."""
    write_atomically(directory / RECORD_NAME, json.dumps(record, indent=1, default=str))
    write_atomically(directory / TABLE_NAME, _as_csv(record))


def _summary(combination: Combination, runs: list[SweepRun]) -> dict[str, Any]:
    entries = [_entry(run) for run in runs]
    return {
        "name": combination.name,
        "variant": combination.variant,
        "settings": combination.settings,
        "method": combination.config.method,
        "preset": combination.config.preset,
        "setting": combination.config.setting,
        **{measure: _spread([entry[measure] for entry in entries]) for measure in MEASURES},
        "runs": entries,
    }


def _spread(values: list[float | None]) -> dict[str, float] | None:
    """Mean, population standard deviation and count over seeds."""
    found = Spread.of([value for value in values if value is not None])
    return None if found is None else asdict(found)


def _entry(run: SweepRun) -> dict[str, Any]:
    results = read_results(run.path) if run.status == "finished" else None
    return {
        "seed": run.seed,
        "path": run.name,
        "status": run.status,
        "exit_code": run.exit_code,
        "message": run.message,
        **(dict.fromkeys(MEASURES) if results is None else _measures(results, run.combination)),
    }


def _measures(results: dict[str, Any], combination: Combination) -> dict[str, float | None]:
    stages, num_tasks = results["stages"], results["num_tasks"]
    epoch = seconds_per_epoch(results, num_tasks * combination.config.learn.epochs)
    test = seconds_per_test(results)
    keeps_all = method_class(combination.config.method).keeps_tasks  # then there is nothing to forget
    return {
        "aa": results["aa"],
        "af": None if keeps_all else results["af"],
        "aa_seen": results.get("aa_seen"),
        "af_seen": None if keeps_all else results.get("af_seen"),
        "train_ms_per_epoch": None if epoch is None else 1000 * epoch,
        "inference_ms": None if test is None else 1000 * test,
        "seconds": math.fsum(stage["seconds"] for stage in stages.values()),
        "peak_bytes": max(stage["peak_bytes"] for stage in stages.values()),
    }


def _as_csv(record: dict[str, Any]) -> str:
    """The record as CSV, a row for each run."""
    combinations = record["combinations"]
    keys = list(dict.fromkeys(key for combination in combinations for key in combination["settings"]))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["combination", "variant", *keys, "seed", "status", *MEASURES, "path", "message"])
    for combination in combinations:
        settings = combination["settings"]
        values = [shown_value(settings[key]) if key in settings else "" for key in keys]
        for run in combination["runs"]:
            measures = [run[measure] for measure in MEASURES]
            place = [combination["name"], combination["variant"] or "", *values, run["seed"]]
            table.writerow([*place, run["status"], *measures, run["path"], run["message"] or ""])
    return text.getvalue()
