"""Rates of one core of this machine, from the program's own reports; and what two workers really take.

A rate comes from a small graph and one process, but for what two workers fill of one machine's memory at once, which
takes two; what is checked is another, larger graph, with one process of all cores and with worker processes of one core
each. So the check can fail: nothing that is predicted was used as a rate.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import ecgl, run_measured
from bench.simulate.model import Graph, Rates
from ecgl_scale.engine.place import FilePlace

FEATURES = 64

Seconds = dict[str, float]
"""By stage."""


@dataclass(frozen=True)
class Stores:
    """A graph of each kind: edges that are costly to follow, and features that are many."""

    kron: Path
    kron_graph: Graph
    sbm: Path
    sbm_graph: Graph
    bare: Path
    """The nodes of the block model with next to no edges."""
    build_seconds: float

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return self.kron, self.sbm, self.bare


def make_stores(work: Path, scale: int, nodes: int) -> Stores:
    """Generate a Kronecker graph for sweeps and a block model for what reads features."""
    kron, sbm, bare = (work / f"{name}.ecgl" for name in (f"kron{scale}", f"sbm{nodes}", f"bare{nodes}"))
    built = run_measured(ecgl("generate", "kron", str(kron), "--scale", str(scale), "--overwrite", "--json"))
    options = ("--nodes", str(nodes), "--classes", "10", "--features", str(FEATURES), "--overwrite", "--json")
    made = run_measured(ecgl("generate", "sbm", str(sbm), *options))
    run_measured(ecgl("generate", "sbm", str(bare), *options, "--average-degree", "0.1"))
    return Stores(kron, _graph(built.stdout), sbm, _graph(made.stdout), bare, built.seconds)


def build_seconds(work: Path, scale: int, repeats: int) -> tuple[float, int]:
    """Median seconds of building a Kronecker graph, and its edges; a first one loads kernels and is not counted."""
    store, seconds, edges = work / "built.ecgl", [], 0
    for _ in range(repeats + 1):
        built = run_measured(ecgl("generate", "kron", str(store), "--scale", str(scale), "--overwrite", "--json"))
        seconds.append(built.seconds)
        edges = json.loads(built.stdout)["num_edges"]
    shutil.rmtree(store)
    return statistics.median(seconds[1:]), edges


def _graph(stdout: str) -> Graph:
    info = json.loads(stdout)
    return Graph("measured", info["num_nodes"], info["num_edges"], info["num_features"] or 0, 10, 0)


def rank_seconds(stores: Stores, work: Path, sweeps: int, *options: str) -> Seconds:
    """Seconds of a sweep, of the attribute vector and of diversity, by the report of ``ecgl rank``, each by itself."""
    out = work / "scores.parquet"
    fixed = ("--out", str(out), "--tol", "0", "--max-iter", str(sweeps), "--json", *options)
    alone = ("--kind", "diversity", "--out", str(out), "--json", *options)
    importance = _report("rank", str(stores.kron), "--ignore-features", *fixed)
    attributed = _report("rank", str(stores.sbm), *fixed)
    diverse, bare = (_report("rank", str(store), *alone) for store in (stores.sbm, stores.bare))
    out.unlink()
    times = [sweep["seconds"] for sweep in importance["importance"]["sweeps"]]
    return {
        "sweep": statistics.median(times),
        "attribute": attributed["seconds"]["attributes"],
        "diversity": diverse["seconds"]["diversity"],
        "loading": bare["seconds"]["diversity"],
    }


def _report(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_measured(ecgl(*arguments)).stdout)
    return found


@dataclass(frozen=True)
class Measured:
    """Median seconds of each stage, of every graph and way that is looked at."""

    taken: Seconds
    """The small graphs, by one process."""
    begin: Seconds
    """The tiny ones: what does not grow with the graph, and is no part of a rate."""
    elsewhere: Seconds
    """The tiny ones, by one worker."""
    two: Seconds
    """The small ones, by two workers."""
    one_large: Seconds
    """What is predicted: the large ones by one process of two threads."""
    two_large: Seconds
    """And by two workers of a thread each."""


def measure_in_turns(small: Stores, tiny: Stores, large: Stores, work: Path, sweeps: int, repeats: int) -> Measured:
    """Everything once, then everything again: the speed of a shared machine drifts, and so it drifts for all alike."""
    one_worker, two_workers = (("--workers", count, "--worker-threads", "1") for count in "12")
    runs = [
        {
            "taken": rank_seconds(small, work, sweeps),
            "one_large": rank_seconds(large, work, sweeps, "--threads", "2"),
            "two": rank_seconds(small, work, 2, *two_workers),
            "two_large": rank_seconds(large, work, sweeps, *two_workers),
            "begin": rank_seconds(tiny, work, 2),
            "elsewhere": rank_seconds(tiny, work, 2, *one_worker),
        }
        for _ in range(repeats)
    ]
    return Measured(
        **{
            way: {stage: statistics.median(run[way][stage] for run in runs) for stage in seconds}
            for way, seconds in runs[0].items()
        }
    )


def rates_of(measured: Measured, stores: Stores, work: Path, repeats: int) -> Rates:
    """What one core does, from a process that has all of them; and what files and messages cost."""
    cores = len(os.sched_getaffinity(0))
    taken, begin, elsewhere, two = measured.taken, measured.begin, measured.elsewhere, measured.two
    kron, sbm = stores.kron_graph, stores.sbm_graph
    read, written = _place_rates(work / "place", repeats)
    loading = max(taken["loading"] - begin["loading"], 0.1 * taken["loading"])
    shared = max(two["loading"] - elsewhere["loading"], 0.1 * two["loading"])
    walking = max(taken["diversity"] - taken["loading"], 0.1 * taken["diversity"])
    growing = max(taken["attribute"] - begin["attribute"], 0.1 * taken["attribute"])
    return Rates(
        build_edges=kron.edges / stores.build_seconds / cores,
        attribute_values=2 * sbm.nodes * sbm.features / growing / cores,
        sweep_edges=kron.edges / taken["sweep"] / cores,
        distance_values=(sbm.edges + sbm.nodes) * sbm.features / walking / cores,
        column_bytes=4 * sbm.nodes * sbm.features / loading,
        shared_column_bytes=4 * sbm.nodes * sbm.features / shared,
        flops=_flops(repeats),
        place_read_bytes=read,
        place_write_bytes=written,
        unit_seconds=_unit_seconds(work, repeats),
        begin=begin,
        begin_elsewhere=elsewhere,
    )


def _place_rates(directory: Path, repeats: int) -> tuple[float, float]:
    """Rows in files, read and written with their checksums, as a sweep does it."""
    rows = np.random.default_rng(0).random(1 << 22)
    cuts = tuple(range(0, len(rows) + 1, 1 << 18))
    place = FilePlace(directory, cuts, "float64", is_durable=False)
    written = _median_seconds(lambda: place.write(0, rows), repeats)
    read = _median_seconds(lambda: place.read(0, len(rows)), repeats)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    return rows.nbytes / read, rows.nbytes / written


def _flops(repeats: int) -> float:
    """Products of a layer's shape, by one thread."""
    import torch

    torch.set_num_threads(1)
    left, right = torch.rand(4096, 256), torch.rand(256, 256)
    seconds = _median_seconds(lambda: [left @ right for _ in range(20)], repeats)
    return 20 * 2 * 4096 * 256 * 256 / seconds


def _unit_seconds(work: Path, repeats: int) -> float:
    """A sweep of next to nothing by one worker is its messages: four units, one after the other."""
    from bench.simulate.model import UNITS_PER_WORKER

    store, out = work / "tiny.ecgl", work / "tiny.parquet"
    run_measured(ecgl("generate", "kron", str(store), "--scale", "18", "--edge-factor", "1", "--overwrite", "--json"))
    seconds = []
    for _ in range(repeats):
        options = ("--ignore-features", "--tol", "0", "--max-iter", "20", "--json")
        local = _report("rank", str(store), "--out", str(out), *options)["importance"]
        spread_out = _report("rank", str(store), "--out", str(out), "--workers", "1", *options)["importance"]
        seconds.append((spread_out["seconds_per_sweep"] - local["seconds_per_sweep"]) / UNITS_PER_WORKER)
    return statistics.median(seconds)


def _median_seconds(call: Callable[[], Any], repeats: int) -> float:
    taken = []
    for _ in range(max(repeats, 3)):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
