"""Ten generations against the same graph as one: ranking, extraction of tasks, and inference, in turns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bench.growth.pieces import cut
from bench.growth.products import build, write_config
from bench.harness import ecgl, run_measured, spread

NUM_LATER = 9


def ten_generations(work: Path, num_nodes: int | None, repeats: int) -> dict[str, Any]:
    """Seconds of each stage on both stores, and their ratio."""
    pieces = cut(work, num_nodes, NUM_LATER)
    grown, compacted = work / "grown.ecgl", work / "compacted.ecgl"
    build("ingest", pieces.base, grown)
    for part in pieces.later:
        build("append", part, grown)
    shutil.copytree(grown, compacted)
    run_measured(ecgl("compact", str(compacted)))
    configs = {store: write_config(work, store, 1, bank={"budget": 100}) for store in (grown, compacted)}
    seconds: dict[str, dict[Path, list[float]]] = {
        name: {store: [] for store in configs} for name in ("rank", "extract", "infer")
    }
    for turn in range(repeats + 1):
        for store in (grown, compacted) if turn % 2 else (compacted, grown):
            found = _measure(work, store, configs[store])
            for name, value in found.items() if turn else ():  # the first turn fills the page cache
                seconds[name][store].append(value)
    rows = {
        name: {
            "grown_seconds": spread(both[grown]),
            "compacted_seconds": spread(both[compacted]),
            "ratio_of_medians": spread(both[grown])["median"] / spread(both[compacted])["median"],
            "ratio_of_minima": min(both[grown]) / min(both[compacted]),
        }
        for name, both in seconds.items()
    }
    return {"num_generations": NUM_LATER + 1, "new_nodes_share": 0.01, "page_cache": "warm", "stages": rows}


def _measure(work: Path, store: Path, config: Path) -> dict[str, float]:
    ranked = run_measured(ecgl("rank", str(store), "--kind", "both", "--out", str(work / "r.parquet"), "--json"))
    run = work / "run"
    results = json.loads(run_measured(ecgl("run", str(config), "--out", str(run), "--json")).stdout)
    inferred = run_measured(ecgl("infer", str(run), str(store), "--out", str(work / "p.parquet")))
    shutil.rmtree(run)
    return {"rank": ranked.seconds, "extract": results["stages"]["extract"]["seconds"], "infer": inferred.seconds}
