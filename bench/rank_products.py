"""The whole of ``ecgl rank --kind both`` on a graph of the size of ogbn-products, under a budget of 1 GiB.

    python -m bench.rank_products [--like products] [--memory 1GiB] [--repeats 3]

2.45 million nodes, 124 million directed edges, 100 features: attribute vector, attributed PageRank to 1e-8, diversity,
scores written. Every run is a process of its own and begins with the page cache dropped.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from bench.harness import DEFAULT_WORK, drop_page_cache, ecgl, run_measured, save, spread
from ecgl_scale.units import parse_bytes


def run(work: Path, like: str, memory: str, repeats: int) -> dict[str, Any]:
    """Build the graph, rank it, keep seconds and peak of each stage."""
    store, out = work / "products.ecgl", work / "products.parquet"
    shutil.rmtree(store, ignore_errors=True)
    info = json.loads(run_measured(ecgl("generate", "sbm", str(store), "--like", like, "--json")).stdout)
    seconds, peaks, stages, cold = [], [], [], False
    for _ in range(repeats):
        cold = drop_page_cache()
        measured = run_measured(
            ecgl("rank", str(store), "--out", str(out), "--kind", "both", "--memory", memory, "--json")
        )
        report = json.loads(measured.stdout)
        seconds.append(measured.seconds)
        peaks.append(measured.peak_anon_bytes)
        stages.append(report["seconds"])
        print(
            f"{measured.seconds:.1f} s, peak {measured.peak_anon_bytes / 2**20:.0f} MiB, {report['seconds']}",
            flush=True,
        )
    shutil.rmtree(store)
    out.unlink(missing_ok=True)
    return {
        "num_nodes": info["num_nodes"],
        "num_edges": info["num_edges"],
        "num_features": info["num_features"],
        "memory": memory,
        "page_cache": "dropped before each run" if cold else "could not be dropped",
        "seconds": spread(seconds),
        "seconds_of_stages": stages,
        "sweeps": report["importance"]["iterations"],
        "residual": report["importance"]["residual"],
        "converged": report["importance"]["converged"],
        "peak_anon_bytes": max(peaks),
        "holds_budget": max(peaks) <= parse_bytes(memory),
    }


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--like", default="products")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("rank_products", run(arguments.work, arguments.like, arguments.memory, arguments.repeats))


if __name__ == "__main__":
    main()
