"""``python -m bench [case ...]``: run the named cases, or all of them, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = (
    "build_scale",
    "build_peers",
    "build_budget",
    "feature_read",
    "pagerank",
    "cluster",
    "attribute",
    "diversity",
    "rank_products",
    "epoch",
    "ranks",
    "simulate",
    "inference",
    "growth",
    "footprint",
    "context",
    "plan_peaks",
    "plan_time",
    "accuracy",
    "learners",
    "selection",
    "methods",
    "methods_products",
    "paper",
)


def main() -> None:
    """Each case runs in a process of its own, so that no one's memory or caches help another."""
    chosen = sys.argv[1:] or list(CASES)
    unknown = sorted(set(chosen) - set(CASES))
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    root = Path(__file__).parent.parent
    for case in chosen:
        print(f"== {case}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{case}"], cwd=root, check=True)


if __name__ == "__main__":
    main()
