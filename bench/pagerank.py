"""PageRank out of core against PageRank in memory, in the same run, at growing scale.

    python -m bench.pagerank [--scales 20 22 24 25] [--peer-scales 20 22 24 25] [--sweeps 8] [--repeats 3]

Ours is ``ecgl rank`` on a Kronecker store (edge factor 16, both directions) in a process of its own: once with the page
cache dropped, so that every sweep reads its edges from the disk, and once with the tile files in the page cache.
The time is that of a whole sweep: gather, update, residual. Peers hold the graph in memory; loading is not counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import DEFAULT_WORK, drop_page_cache, ecgl, run_measured, save, spread
from bench.pagerank_peers import PEERS

MEMORY = "2GiB"
LARGEST_SCALE = {"igraph": 20, "networkit": 22, "scikit-network": 24}
"""igraph takes minutes for its one solution at scale 22; the others need more than 24 GB at the next one."""


def run(work: Path, scales: list[int], peer_scales: list[int], sweeps: int, repeats: int) -> dict[str, Any]:
    """Measure every scale; stores are built first and removed at the end."""
    rows = []
    for scale in scales:
        store = work / f"rank{scale}.ecgl"
        shutil.rmtree(store, ignore_errors=True)
        info = json.loads(run_measured(ecgl("generate", "kron", str(store), "--scale", str(scale), "--json")).stdout)
        row: dict[str, Any] = {"scale": scale, "num_nodes": info["num_nodes"], "num_edges": info["num_edges"]}
        row["cold"] = _ours(store, work, sweeps, repeats, warm=False)
        row["warm"] = _ours(store, work, sweeps, repeats, warm=True)
        if scale in peer_scales:
            peers = [name for name in PEERS if scale <= LARGEST_SCALE.get(name, scale)]
            row["peers"] = {name: _peer(name, store, sweeps) for name in peers}
            row["times_faster_than"] = {
                name: found["seconds_per_sweep"] / row["warm"]["seconds_per_sweep"]["median"]
                for name, found in row["peers"].items()
                if "seconds_per_sweep" in found
            }
        rows.append(row)
        shutil.rmtree(store)
        print(json.dumps({key: row[key] for key in ("scale", "num_edges")}), _brief(row), flush=True)
    exponent = {cache: _exponent(rows, cache) for cache in ("warm", "cold")} if len(rows) > 1 else None
    return {"memory": MEMORY, "sweeps": sweeps, "rows": rows, "fitted_exponent": exponent}


def _ours(store: Path, work: Path, sweeps: int, repeats: int, *, warm: bool) -> dict[str, Any]:
    seconds, peaks, rates, read = [], [], [], []
    out = work / "scores.parquet"
    for _ in range(repeats):
        dropped = drop_page_cache()
        if warm:
            for path in sorted((store / "tiles").iterdir()):
                path.read_bytes()
        command = ecgl("rank", str(store), "--out", str(out), "--memory", MEMORY, "--tol", "0", "--json")
        measured = run_measured([*command, "--max-iter", str(sweeps), "--ignore-features"])
        report = json.loads(measured.stdout)["importance"]
        times = [sweep["seconds"] for sweep in report["sweeps"]]
        seconds.append(statistics.median(times))
        rates.append(report["edges_per_second"])
        read.append(report["read_bytes"] / sweeps)
        peaks.append(measured.peak_anon_bytes)
    out.unlink(missing_ok=True)
    return {
        "page_cache": "tiles loaded" if warm else "dropped" if dropped else "could not be dropped",
        "seconds_per_sweep": spread(seconds),
        "edges_per_second": statistics.median(rates),
        "read_bytes_per_sweep": statistics.median(read),
        "peak_anon_bytes": max(peaks),
    }


def _peer(name: str, store: Path, sweeps: int) -> dict[str, Any]:
    try:
        measured = run_measured(
            [sys.executable, "-W", "ignore", "-m", "bench.pagerank_peers", name, str(store), str(sweeps)]
        )
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[-1]}
    found: dict[str, Any] = json.loads(measured.stdout.strip().splitlines()[-1])
    return {**found, "peak_anon_bytes": measured.peak_anon_bytes}


def _brief(row: dict[str, Any]) -> str:
    warm, cold = row["warm"], row["cold"]
    peers = ", ".join(f"{name} {ratio:.1f}x" for name, ratio in row.get("times_faster_than", {}).items())
    return (
        f"warm {warm['seconds_per_sweep']['median']:.3f} s, cold {cold['seconds_per_sweep']['median']:.3f} s, "
        f"peak {max(warm['peak_anon_bytes'], cold['peak_anon_bytes']) / 2**20:.0f} MiB; {peers}"
    )


def _exponent(rows: list[dict[str, Any]], cache: str) -> float:
    edges = [row["num_edges"] for row in rows]
    seconds = [row[cache]["seconds_per_sweep"]["median"] for row in rows]
    return float(np.polyfit(np.log(edges), np.log(seconds), 1)[0])


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", type=int, nargs="+", default=[20, 22, 24, 25])
    parser.add_argument("--peer-scales", type=int, nargs="*", default=[20, 22, 24, 25])
    parser.add_argument("--sweeps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    save(
        "pagerank",
        run(arguments.work, arguments.scales, arguments.peer_scales, arguments.sweeps, arguments.repeats),
    )


if __name__ == "__main__":
    main()
