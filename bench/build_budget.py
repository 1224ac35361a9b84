"""The memory promise: builds under three budgets of a graph many times the smallest; same bytes, peak within each.

    python -m bench.build_budget [--scale 24] [--features 16] [--budgets 256MiB 1GiB 4GiB]

RssAnon + RssShmem of the whole process, sampled from outside every 5 ms, may not pass 110 % of the budget.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save
from ecgl_scale.store.format import Manifest
from ecgl_scale.units import parse_bytes

ALLOWED = 1.10


def run(work: Path, scale: int, num_features: int, budgets: list[str]) -> dict[str, Any]:
    """Build once under each budget."""
    rows = []
    checksums = set()
    for budget in budgets:
        store = work / "budget.ecgl"
        shutil.rmtree(store, ignore_errors=True)
        command = ecgl("generate", "kron", str(store), "--scale", str(scale), "--features", str(num_features))
        built = run_measured([*command, "--memory", budget, "--json"])
        info = json.loads(built.stdout)
        share = built.peak_anon_bytes / parse_bytes(budget)
        checksums.add(tuple(record.crc32c for record in Manifest.read(store).files.values()))
        rows.append(
            {
                "budget": budget,
                "peak_anon_bytes": built.peak_anon_bytes,
                "share_of_budget": share,
                "kept": share <= ALLOWED,
                "seconds": built.seconds,
                "store_bytes": info["total_bytes"],
                "store_over_smallest_budget": info["total_bytes"] / min(map(parse_bytes, budgets)),
                "written_bytes": built.written_bytes,
            }
        )
        print(f"{budget}: peak {share:.0%} of the budget, {built.seconds:.1f} s", flush=True)
        shutil.rmtree(store)
    return {
        "scale": scale,
        "features": num_features,
        "rows": rows,
        "same_bytes_under_every_budget": len(checksums) == 1,
    }


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=24)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--budgets", nargs="+", default=["256MiB", "1GiB", "4GiB"])
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("build_budget", run(arguments.work, arguments.scale, arguments.features, arguments.budgets))


if __name__ == "__main__":
    main()
