"""``python -m bench [case ...]``: the named cases, one after the other; without a name ``quick``.

``quick`` is most cases at small sizes in 20 minutes; ``all`` is every case as the records have it, which takes a day.
"""

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
    chosen = sys.argv[1:] or ["quick"]
    chosen = list(CASES) if chosen == ["all"] else chosen
    unknown = sorted(set(chosen) - {*CASES, "quick"})
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are quick, all, {', '.join(CASES)}")
    root = Path(__file__).parent.parent
    for case in chosen:
        print(f"== {case}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{case}"], cwd=root, check=True)


if __name__ == "__main__":
    main()
