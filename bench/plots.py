"""Time and memory against edges, from the records of ``build_scale`` and ``pagerank``: docs/images/scaling.svg.

python -m bench.plots
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import RESULTS

TARGET = Path(__file__).parent.parent / "docs" / "images" / "scaling.svg"
GIB = 1 << 30
Json = Any


def series(
    build: Json, ranked: Json
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[tuple[float, float]]]]:
    """Seconds and GiB, each by name, as pairs of edges and value."""
    seconds = {
        "build a store": [(row["num_edges"], row["build_seconds"]["median"]) for row in build["rows"]],
        "verify every byte": [(row["num_edges"], row["verify_seconds"]) for row in build["rows"]],
        "a sweep, cold": [(row["num_edges"], row["cold"]["seconds_per_sweep"]["median"]) for row in ranked["rows"]],
        "a sweep, warm": [(row["num_edges"], row["warm"]["seconds_per_sweep"]["median"]) for row in ranked["rows"]],
    }
    memory = {
        "build a store": [(row["num_edges"], row["peak_anon_bytes"] / GIB) for row in build["rows"]],
        "a sweep": [(row["num_edges"], row["warm"]["peak_anon_bytes"] / GIB) for row in ranked["rows"]],
    }
    for peer, title in (("dgl", "a sweep by DGL"), ("scipy", "a sweep by scipy")):
        found = [(row["num_edges"], row["peers"][peer]) for row in ranked["rows"] if peer in row.get("peers", {})]
        found = [(edges, one) for edges, one in found if "seconds_per_sweep" in one]
        seconds[title] = [(edges, one["seconds_per_sweep"]) for edges, one in found]
        memory[title] = [(edges, one["peak_anon_bytes"] / GIB) for edges, one in found]
    return seconds, memory


def draw(seconds: Json, memory: Json, target: Path) -> None:
    """Two panels with logarithmic axes, peers dashed."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "ecgl"  # the same file for the same numbers
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names: Sequence[str] = list(dict.fromkeys([*seconds, *memory]))
    colours = {name: f"C{place}" for place, name in enumerate(names)}
    for panel, lines, title in zip(panels, (seconds, memory), ("seconds", "peak of own memory, GiB"), strict=True):
        for name, points in lines.items():
            style = "--" if " by " in name else "-"
            panel.plot(*zip(*points, strict=True), style, marker="o", color=colours[name], label=name)
        panel.set(xscale="log", yscale="log", xlabel="edges stored", title=title)
        panel.grid(which="major", alpha=0.3)
        panel.legend(fontsize="small")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw from the records."""
    build, ranked = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("build_scale", "pagerank")
    )
    draw(*series(build, ranked), TARGET)
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
