"""Building a store at growing scale: seconds, peak memory, bytes written, and whether time grows linearly in edges.

    python -m bench.build_scale [--scales 20 22 24 25] [--memory 4GiB] [--repeats 3]

Each build is ``ecgl generate kron`` (edge factor 16, both directions stored) in a process of its own, generation
included, followed by ``ecgl verify``, which reads every byte and checks every row and tile.
Linear means: seconds per million stored edges at the largest scale against the smallest, and the fitted exponent.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save, spread
from ecgl_scale.units import GIB, parse_bytes

MAX_PEAK_BYTES = 4 * GIB
GRIDGRAPH_SECONDS_AT_25 = 45.0
"""GridGraph's own preprocessing of the scale 25 graph on this kind of machine (design notes, kernels.md)."""


def run(work: Path, scales: list[int], memory: str, repeats: int) -> dict[str, Any]:
    """Build and verify every scale."""
    rows = [_measure(work, scale, memory, repeats) for scale in scales]
    edges = np.array([row["num_edges"] for row in rows], float)
    seconds = np.array([row["build_seconds"]["median"] for row in rows])
    exponent = float(np.polyfit(np.log(edges), np.log(seconds), 1)[0]) if len(rows) > 1 else None
    return {"memory": memory, "budget_bytes": parse_bytes(memory), "rows": rows, "fitted_exponent": exponent}


def _measure(work: Path, scale: int, memory: str, repeats: int) -> dict[str, Any]:
    store = work / f"kron{scale}.ecgl"
    builds, peaks, written = [], [], []
    for _ in range(repeats):
        shutil.rmtree(store, ignore_errors=True)
        built = run_measured(ecgl("generate", "kron", str(store), "--scale", str(scale), "--memory", memory, "--json"))
        builds.append(built.seconds)
        peaks.append(built.peak_anon_bytes)
        written.append(built.written_bytes)
    verified = run_measured(ecgl("verify", str(store)))
    info = json.loads(built.stdout)
    shutil.rmtree(store)
    row = {
        "scale": scale,
        "num_nodes": info["num_nodes"],
        "num_edges": info["num_edges"],
        "store_bytes": info["total_bytes"],
        "build_seconds": spread(builds),
        "seconds_per_million_edges": spread(builds)["median"] / info["num_edges"] * 1e6,
        "peak_anon_bytes": max(peaks),
        "written_bytes": max(written),
        "verify_seconds": verified.seconds,
        "verify_peak_anon_bytes": verified.peak_anon_bytes,
    }
    print(
        f"scale {scale}: {min(builds):.1f} s, peak {max(peaks) / 2**20:.0f} MiB, verify {verified.seconds:.1f} s",
        flush=True,
    )
    return row


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", type=int, nargs="+", default=[20, 22, 24, 25])
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("build_scale", run(arguments.work, arguments.scales, arguments.memory, arguments.repeats))


if __name__ == "__main__":
    main()
