"""Predict stages on machines that we do not have, and check the same formulas on the one that we have.

    python -m bench.simulate [--scale 22] [--check-scale 24] [--nodes 1200000] [--check-nodes 3600000] [--sweeps 10]
    python -m bench.simulate --build      the rate of building alone; the record keeps all others

Rates are measured on the smaller graphs with one process; the larger ones are predicted and measured, with one process
of all cores and with two workers of one core each, in turns with the smaller ones. The record has both, the ratio, and
the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.harness import DEFAULT_WORK, RESULTS, save
from bench.simulate.measure import Seconds, Stores, build_seconds, make_stores, measure_in_turns, rates_of
from bench.simulate.model import Graph, Machine, Rates, as_rows, simulate

GB = 1e9
GRAPHS = (
    Graph("papers100M", 111e6, 3.2e9, 128, 172, 1.5e6),
    Graph("10 G edges", 0.5e9, 10e9, 128, 100, 50e6),
    Graph("1 T edges", 10e9, 1e12, 128, 100, 1e9),
)
MACHINES = {
    "10 Gb/s, files 20 GB/s": Machine(32, 256 * GB, 1.25 * GB, 20 * GB, 1 * GB),
    "100 Gb/s, files 200 GB/s": Machine(32, 256 * GB, 12.5 * GB, 200 * GB, 5 * GB),
}
TINY_SCALE = 12
COUNTS = (1, 16, 256)
CHECKED = ("sweep", "attribute", "diversity")


def run(work: Path, scales: tuple[int, int], nodes: tuple[int, int], sweeps: int, repeats: int) -> dict[str, Any]:
    """Rates, the check here, and the tables."""
    tiny = make_stores(work, TINY_SCALE, nodes[0] // 50)  # the first one: it may have to compile kernels
    small = make_stores(work, scales[0], nodes[0])
    large = make_stores(work, scales[1], nodes[1])
    measured = measure_in_turns(small, tiny, large, work, sweeps, repeats)
    rates = rates_of(measured, small, work, repeats)
    checks = [
        _check(large, rates, measured.one_large, num_workers=1),
        _check(large, rates, measured.two_large, num_workers=2),
    ]
    for path in (*tiny.paths, *small.paths, *large.paths):
        shutil.rmtree(path)
    return {
        "rates": asdict(rates),
        "measured_seconds": asdict(measured),
        "checks": checks,
        "tables": _tables(rates),
    }


def build_again(work: Path, scale: int, known: dict[str, Any], repeats: int) -> dict[str, Any]:
    """What is known, with the rate of building measured anew, and the tables that follow."""
    seconds, edges = build_seconds(work, scale, repeats)
    rates = Rates(**{**known["rates"], "build_edges": edges / seconds / len(os.sched_getaffinity(0))})
    kept = {name: known[name] for name in ("measured_seconds", "checks")}
    return {"rates": asdict(rates), **kept, "tables": _tables(rates)}


def _tables(rates: Rates) -> list[dict[str, Any]]:
    return [
        {"graph": graph.name, "machines": name, "count": count, **as_rows(simulate(graph, machine, count, rates))}
        for graph in GRAPHS
        for name, machine in MACHINES.items()
        for count in COUNTS
    ]


def _check(stores: Stores, rates: Rates, measured: Seconds, *, num_workers: int) -> dict[str, Any]:
    """Predicted and measured seconds: one process with two threads, or two workers with a thread each."""
    memory = 8 * GB  # files are in the page cache: as fast as memory is copied
    here = Machine(2 // num_workers, memory, 10 * GB, 20 * GB, 10 * GB, num_sharing=num_workers)
    predicted = {
        "sweep": simulate(stores.kron_graph, here, num_workers, rates)["sweep"].seconds,
        **{name: simulate(stores.sbm_graph, here, num_workers, rates)[name].seconds for name in CHECKED[1:]},
    }
    rows = {
        name: {
            "predicted": predicted[name],
            "measured": measured[name],
            "ratio": predicted[name] / measured[name],
        }
        for name in CHECKED
    }
    print(
        num_workers, {name: f"{row['predicted']:.3f} / {row['measured']:.3f}" for name, row in rows.items()}, flush=True
    )
    return {"num_workers": num_workers, **rows}


def main() -> None:
    """Run the case and save its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--check-scale", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=1_200_000)
    parser.add_argument("--check-nodes", type=int, default=3_600_000)
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--build", action="store_true", help="Measure building alone.")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK / "simulate")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.build:
        known = json.loads((RESULTS / "simulate.json").read_text(encoding="utf-8"))
        save("simulate", build_again(given.work, given.scale, known, given.repeats))
        return
    found = run(
        given.work, (given.scale, given.check_scale), (given.nodes, given.check_nodes), given.sweeps, given.repeats
    )
    save("simulate", found)


if __name__ == "__main__":
    main()
