"""An epoch by two ranks of a thread each, against one process of two threads: what the exchange of lanes costs.

    python -m bench.ranks [--rows 200000] [--epochs 30] [--repeats 3]

Both are ``ecgl run`` (fine-tuning, one task of all classes) and take turns on the same store. An epoch's time is that
between the ends of two epochs in ``events.jsonl``, with all that a run does between them; the first of a run is not
counted. Their losses agree but for the last bits, as torch adds up losses otherwise with two threads than with one;
how far they differ is in the record. With as many threads each they are the same: ``tests/session/test_ranks.py``.

    narrow  100 features -> 256 -> 47 classes: 38 thousand weights, lanes of 0.15 MB
    wide    1,024 features -> 256 -> 47 classes, a quarter of the rows: 0.27 million weights, lanes of 1.1 MB
"""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save, spread
from ecgl_scale.engine.resources import Resources
from ecgl_scale.learn.ranks import exchange_bytes
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.sbm import SbmSettings, sbm_source

HIDDEN, NUM_CLASSES, TRAIN_SHARE = 256, 47, 0.9
WIDTHS = {"narrow": (100, 1.0), "wide": (1024, 0.25)}
"""Features, and the share of the rows."""
CANDIDATES = {"one process, 2 threads": (1, 2), "2 ranks, 1 thread each": (2, 1)}
"""Ranks, and threads of each."""


def run(work: Path, *, rows: int, epochs: int, repeats: int) -> dict[str, Any]:
    """Both widths."""
    cases = {name: _run_case(work, name, rows, epochs, repeats) for name in WIDTHS}
    return {"hidden": HIDDEN, "epochs_counted": epochs - 1, "cores": 2, "cases": cases}


def _run_case(work: Path, name: str, rows: int, epochs: int, repeats: int) -> dict[str, Any]:
    num_features, share = WIDTHS[name]
    num_rows = int(rows * share)
    store, config = work / f"ranks-{name}.ecgl", work / f"ranks-{name}.yaml"
    _build(store, num_rows, num_features)
    config.write_text(json.dumps(_config(store, epochs)), encoding="utf-8")
    seconds: dict[str, list[float]] = {candidate: [] for candidate in CANDIDATES}
    losses: list[NDArray[np.float64]] = []
    for turn in range(repeats):
        order = list(CANDIDATES.items())
        for candidate, (ranks, threads) in order if turn % 2 == 0 else order[::-1]:
            out = work / f"ranks-{name}-run"
            shutil.rmtree(out, ignore_errors=True)
            sets = ["--ranks", str(ranks), "--set", f"threads={threads}"]
            run_measured(ecgl("--quiet", "run", str(config), "--out", str(out), *sets))
            found = _epoch_seconds(out)
            seconds[candidate] += found
            losses.append(_losses(out))
            print(f"{name}, {candidate}: {sorted(found)[len(found) // 2]:.4f} s an epoch", flush=True)
            shutil.rmtree(out)
    shutil.rmtree(store)
    config.unlink()
    one, two = (spread(seconds[candidate]) for candidate in CANDIDATES)
    num_weights = (num_features + 1) * HIDDEN + (HIDDEN + 1) * NUM_CLASSES
    return {
        "num_rows": int(num_rows * TRAIN_SHARE),
        "num_features": num_features,
        "num_weights": num_weights,
        "exchange_bytes": exchange_bytes(num_weights, 2),
        "seconds": dict(zip(CANDIDATES, (one, two), strict=True)),
        "ranks_over_threads": two["median"] / one["median"],
        "losses_differ_by_at_most": float(np.max(np.ptp(losses, axis=0) / np.abs(losses[0]))),
    }


def _build(store: Path, num_rows: int, num_features: int) -> None:
    shutil.rmtree(store, ignore_errors=True)
    settings = SbmSettings(
        num_nodes=num_rows, num_classes=NUM_CLASSES, num_features=num_features, num_edges=num_rows, name="ranks"
    )
    build_store(sbm_source(settings), store, Resources.of(), options=BuildOptions(symmetrise=True))


def _config(store: Path, epochs: int) -> dict[str, Any]:
    return {
        "store": str(store),
        "method": "finetune",
        "tasks": {"classes_per_task": NUM_CLASSES, "fractions": [TRAIN_SHARE, 0.05, 0.05]},
        "learn": {"hidden": [HIDDEN], "epochs": epochs, "device": "cpu", "scale": "none"},
    }


def _epoch_seconds(run_directory: Path) -> list[float]:
    lines = (run_directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ends = [event["time"] for event in map(json.loads, lines) if event["event"] == "EpochFinished"]
    return [after - before for before, after in pairwise(ends)]


def _losses(run_directory: Path) -> NDArray[np.float64]:
    table = pq.read_table(run_directory / "metrics.parquet").to_pylist()
    return np.array([row["value"] for row in table if row["kind"] == "loss"])


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("ranks", run(arguments.work, rows=arguments.rows, epochs=arguments.epochs, repeats=arguments.repeats))


if __name__ == "__main__":
    main()
