"""PageRank out of core against PageRank in memory, in the same run, at growing scale.

    python -m bench.pagerank [--scales 20 22 24 25] [--peer-scales 20 22] [--sweeps 8] [--repeats 3] [--only-build]

Ours is ``ecgl rank`` on a Kronecker store (edge factor 16, both directions) in a process of its own: once with the page
cache dropped, so that every sweep reads its edges from the disk, and once with the tile files in the page cache.
Every scale is built twice, with the order of sources that the build chooses and in the natural order, which was the
only one; the two are ranked in turns. Where the precision is float64 by default, float32 is measured besides, as peers
use it. The time is that of a whole sweep: gather, update, residual. Peers hold the graph in memory; loading is not
counted. Stores that a call with ``--only-build`` has left are used, so that only the sweeps need a quiet machine.
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
from ecgl_scale.rank.pagerank import PageRankSettings

MEMORY = "2GiB"
LARGEST_SCALE = {"igraph": 20, "networkit": 22, "scikit-network": 24}
"""igraph takes minutes for its one solution at scale 22; the others need more than 24 GB at the next one."""
COUNTS = ("num_nodes", "num_edges")


def run(work: Path, scales: list[int], peer_scales: list[int], sweeps: int, repeats: int) -> dict[str, Any]:
    """Measure every scale; stores are built first, unless they are there, and removed at the end."""
    rows = []
    for scale in scales:
        stores = {order: work / f"rank{scale}-{order}.ecgl" for order in ("none", "auto")}
        built = build(work, scale)
        store = stores["auto"]
        row: dict[str, Any] = {"scale": scale, **{name: built["auto"][name] for name in COUNTS}, "build": built}
        cases = {"cold": "auto", "warm": "auto"}
        if PageRankSettings().precision_for(row["num_nodes"]) == "float64":
            cases["warm_float32"] = "float32"
        row["times_faster_than_natural_order"] = {}
        for case, precision in cases.items():
            found = _in_turns(stores, work, sweeps, repeats, precision, warm=case != "cold")
            row[case], row[f"{case}_natural"] = found["auto"], found["none"]
            seconds = [found[order]["seconds_per_sweep"]["median"] for order in ("none", "auto")]
            row["times_faster_than_natural_order"][case] = seconds[0] / seconds[1]
        if scale in peer_scales:
            peers = [name for name in PEERS if scale <= LARGEST_SCALE.get(name, scale)]
            row["peers"] = {name: _peer(name, store, sweeps) for name in peers}
            for case in (case for case in cases if case != "cold"):
                row[f"times_faster_than{case.removeprefix('warm')}"] = {
                    name: peer["seconds_per_sweep"] / row[case]["seconds_per_sweep"]["median"]
                    for name, peer in row["peers"].items()
                    if "seconds_per_sweep" in peer
                }
        rows.append(row)
        for path in stores.values():
            shutil.rmtree(path)
            path.with_suffix(".json").unlink()
        print(json.dumps({key: row[key] for key in ("scale", "num_edges")}), _brief(row), flush=True)
    exponent = {cache: _exponent(rows, cache) for cache in ("warm", "cold")} if len(rows) > 1 else None
    return {"memory": MEMORY, "sweeps": sweeps, "rows": rows, "fitted_exponent": exponent}


def build(work: Path, scale: int) -> dict[str, dict[str, Any]]:
    """Build the stores of a scale that are not there; what it took is kept beside each."""
    found = {}
    for order in ("none", "auto"):
        store = work / f"rank{scale}-{order}.ecgl"
        note = store.with_suffix(".json")
        if not note.exists():
            shutil.rmtree(store, ignore_errors=True)
            measured = run_measured([sys.executable, "-m", "bench.kron_store", str(store), str(scale), order])
            took = {"seconds": measured.seconds, "cpu_seconds": measured.cpu_seconds}
            took["peak_anon_bytes"] = measured.peak_anon_bytes
            note.write_text(json.dumps({**json.loads(measured.stdout), **took}))
        found[order] = json.loads(note.read_text())
    return found


def _in_turns(
    stores: dict[str, Path], work: Path, sweeps: int, repeats: int, precision: str, *, warm: bool
) -> dict[str, dict[str, Any]]:
    """Rank the stores one after the other, again and again."""
    found: dict[str, list[dict[str, Any]]] = {order: [] for order in stores}
    for _ in range(repeats):
        for order, store in stores.items():
            found[order].append(_rank_once(store, work, sweeps, precision, warm=warm))
    return {
        order: {
            "page_cache": runs[-1]["page_cache"],
            "seconds_per_sweep": spread([run["seconds"] for run in runs]),
            "edges_per_second": statistics.median(run["edges_per_second"] for run in runs),
            "read_bytes_per_sweep": statistics.median(run["read_bytes"] for run in runs),
            "peak_anon_bytes": max(run["peak_anon_bytes"] for run in runs),
        }
        for order, runs in found.items()
    }


def _rank_once(store: Path, work: Path, sweeps: int, precision: str, *, warm: bool) -> dict[str, Any]:
    dropped = drop_page_cache()
    if warm:
        for path in sorted((store / "tiles").iterdir()):
            path.read_bytes()
    out = work / "scores.parquet"
    command = ecgl("rank", str(store), "--out", str(out), "--memory", MEMORY, "--tol", "0", "--json")
    measured = run_measured([*command, "--max-iter", str(sweeps), "--ignore-features", "--precision", precision])
    out.unlink(missing_ok=True)
    report = json.loads(measured.stdout)["importance"]
    return {
        "page_cache": "tiles loaded" if warm else "dropped" if dropped else "could not be dropped",
        "seconds": statistics.median(sweep["seconds"] for sweep in report["sweeps"]),
        "edges_per_second": report["edges_per_second"],
        "read_bytes": report["read_bytes"] / sweeps,
        "peak_anon_bytes": measured.peak_anon_bytes,
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
    ratios = {**row["times_faster_than_natural_order"], **row.get("times_faster_than", {})}
    ratios |= {f"{name} (float32)": ratio for name, ratio in row.get("times_faster_than_float32", {}).items()}
    peers = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
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
    parser.add_argument("--only-build", action="store_true")
    parser.add_argument("--record", default="pagerank", help="the name of the record in bench/results")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.only_build:
        for scale in arguments.scales:
            print(scale, build(arguments.work, scale), flush=True)
        return
    save(
        arguments.record,
        run(arguments.work, arguments.scales, arguments.peer_scales, arguments.sweeps, arguments.repeats),
    )


if __name__ == "__main__":
    main()
