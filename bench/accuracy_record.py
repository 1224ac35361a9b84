"""The record of runs on real graphs, which may grow from two processes at once: each adds to the file as it stands.

A run is looked up by its graph, row, setting and seed, and by a digest of its config.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness
from ecgl_scale.config.schema import NOT_IN_DIGEST, RunConfig, config_from_mapping

MEASURES = ("aa", "af", "aa_seen", "af_seen", "aa_micro", "seconds", "cpu_seconds", "peak_bytes")


@dataclass(frozen=True)
class Job:
    """One run: a cell of the table and a seed."""

    graph: str
    row: str
    setting: str
    seed: int
    mapping: dict[str, Any]
    overrides: tuple[str, ...]
    work: Path
    threads: int = 1

    @property
    def config(self) -> RunConfig:
        """What is run."""
        # two processes may not extract a graph to one place at the same time
        cache = self.work / f"tasks-{multiprocessing.current_process().name}"
        return config_from_mapping({**self.mapping, "cache": str(cache)}, overrides=self.overrides)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The keys of a config that change results, whatever machine it is on and whatever its seed."""
    mapping: dict[str, Any] = json.loads(json.dumps(config.to_mapping(), default=str))
    for key in (*NOT_IN_DIGEST, "store", "seed"):
        section, _, name = key.rpartition(".")
        del (mapping[section] if section else mapping)[name]
    is_of_ecgl = config.method == "ecgl" or ":" in config.method
    if not is_of_ecgl:
        mapping["bank"]["select"] = "ecgl"  # others do not ask, whatever the preset says
    if not is_of_ecgl or mapping["learn"]["last_layer"] == "trained":  # as before there was this key
        del mapping["learn"]["last_layer"]
    return mapping


def digest_of(config: RunConfig) -> str:
    """Tells whether a value in the record is of this config."""
    return hashlib.sha256(json.dumps(settings_of(config), sort_keys=True).encode()).hexdigest()[:16]


class Record:
    """``results/<case>.json``, kept while it grows."""

    def __init__(self, case: str) -> None:
        self._case = case
        self.rows: list[dict[str, Any]] = []
        self.read()

    def read(self) -> None:
        """Take what is in the file."""
        path = harness.RESULTS / f"{self._case}.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.rows = found.get("rows", [])

    def row_of(self, job: Job) -> dict[str, Any]:
        """The row of a run, made new where there is none of its config."""
        wanted = (job.graph, job.row, job.setting)
        config = job.config
        digest = digest_of(config)
        for row in self.rows:
            if (row["graph"], row["row"], row["setting"]) == wanted:
                if row["digest"] == digest:
                    return row
                self.rows.remove(row)
                break
        row = dict(zip(("graph", "row", "setting"), wanted, strict=True))
        self.rows.append({**row, "digest": digest, "config": settings_of(config), "seeds": {}})
        return self.rows[-1]

    def has(self, job: Job) -> bool:
        """Whether this run is in the record."""
        return str(job.seed) in self.row_of(job)["seeds"]

    def add(self, job: Job, result: dict[str, Any]) -> None:
        """Put a run into the file, beside what others have put there since it was read."""
        with _hold(harness.RESULTS):
            self.read()
            row = self.row_of(job)
            row["seeds"][str(job.seed)] = result
            runs = [row["seeds"][seed] for seed in sorted(row["seeds"], key=int)]
            for name in MEASURES:
                if any(name in run for run in runs):
                    row[name] = describe([run.get(name) for run in runs])
            self.save()

    def save(self) -> None:
        """Write what there is."""
        rows = [row for row in self.rows if row["seeds"]]
        harness.save(self._case, {"accuracy": "macro, percent", "rows": rows})


def describe(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, population deviation (as the reference code's tables) and all values; nothing where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "std": None, "n": 0, "all": []}
    return {"mean": statistics.fmean(known), "std": statistics.pstdev(known), "n": len(known), "all": known}


@contextmanager
def _hold(directory: Path) -> Iterator[None]:
    """Be the only process that writes a record there."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
