"""Workers in processes of their own against threads of one process; and two machines of a network, on one.

    python -m bench.cluster [--scales 20 22 24] [--sweeps 8] [--repeats 3] [--network-scales 20 22 24]

The first part is a sweep of PageRank by ``ecgl rank --workers 2`` (a thread each) beside ``--threads 2``, in turns, on
Kronecker stores (edge factor 16, both directions), with the tile files in the page cache and without; starting workers
is not in it and stands apart. The second part has two workers in network namespaces with cables of 1 Gbit/s: the same
bytes are compared, and seconds and bytes over the cables are taken. Files of all are on one local disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import DEFAULT_WORK, RESULTS, drop_page_cache, ecgl, run_measured, save, spread
from bench.netns import RATE, Machine, machines, reason_without

THREADS = ("--threads", "2")
WORKERS = ("--workers", "2", "--worker-threads", "1")


def run(work: Path, scales: list[int], sweeps: int, repeats: int, network_scales: list[int]) -> dict[str, Any]:
    """Measure both parts; stores are removed when they are done with."""
    rows = [_overhead(work, scale, sweeps, repeats) for scale in scales]
    reason = reason_without()
    network: Any = [_network(work, scale) for scale in network_scales] if reason is None else {"left_out": reason}
    return {"sweeps": sweeps, "rows": rows, "network": network}


def _overhead(work: Path, scale: int, sweeps: int, repeats: int) -> dict[str, Any]:
    store = work / f"cluster{scale}.ecgl"
    shutil.rmtree(store, ignore_errors=True)
    info = json.loads(run_measured(ecgl("generate", "kron", str(store), "--scale", str(scale), "--json")).stdout)
    row: dict[str, Any] = {"scale": scale, "num_nodes": info["num_nodes"], "num_edges": info["num_edges"]}
    try:
        for cache in ("warm", "cold"):
            drop_page_cache()
            if cache == "warm":
                for path in sorted((store / "tiles").iterdir()):
                    path.read_bytes()
            found: dict[str, list[dict[str, Any]]] = {"threads": [], "workers": []}
            for _ in range(repeats):
                found["threads"].append(_rank(store, work, sweeps, THREADS))
                found["workers"].append(_rank(store, work, sweeps, WORKERS))
            row[cache] = _compared(found)
            print(scale, cache, json.dumps(row[cache]["times_slower"]), flush=True)
    finally:
        shutil.rmtree(store)
    return row


def _rank(store: Path, work: Path, sweeps: int, options: tuple[str, ...]) -> dict[str, Any]:
    out = work / "scores.parquet"
    command = ecgl("rank", str(store), "--out", str(out), *options, "--tol", "0", "--max-iter", str(sweeps), "--json")
    started = time.perf_counter()
    report = json.loads(run_measured([*command, "--ignore-features"]).stdout)
    whole = time.perf_counter() - started
    importance = report["importance"]
    seconds = [sweep["seconds"] for sweep in importance["sweeps"]]
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    out.unlink()
    return {
        "seconds_per_sweep": importance["seconds_per_sweep"],
        "seconds_besides_sweeps": whole - sum(seconds),
        "exchanged_bytes_per_sweep": importance["exchanged_bytes"] / sweeps,
        "sha256": digest,
    }


def _compared(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    taken = {name: spread([one["seconds_per_sweep"] for one in ran]) for name, ran in found.items()}
    besides = {name: spread([one["seconds_besides_sweeps"] for one in ran]) for name, ran in found.items()}
    return {
        "seconds_per_sweep": taken,
        "times_slower": taken["workers"]["median"] / taken["threads"]["median"],
        "seconds_besides_sweeps": besides,
        "exchanged_bytes_per_sweep": found["workers"][0]["exchanged_bytes_per_sweep"],
        "same_bytes": len({one["sha256"] for ran in found.values() for one in ran}) == 1,
    }


def _network(work: Path, scale: int) -> dict[str, Any]:
    """Every command by this process with two threads, and by a worker with one thread on each of two machines."""
    folder = work / "network"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "run.yaml"
    try:
        _prepare(folder, config, scale)
        with machines() as (address, made), _cluster(folder, address, made) as options:
            rows = [_both(name, arguments, folder, options, made) for name, arguments in _commands(folder, config)]
    finally:
        shutil.rmtree(folder)
    return {
        "rate": RATE,
        "delay": made[0].delay or "none: this kernel has no netem",
        "scale": scale,
        "rows": rows,
        "same_bytes": all(row["same_bytes"] for row in rows),
    }


def _prepare(folder: Path, config: Path, scale: int) -> None:
    sizes = ("--nodes", str(1 << max(scale - 5, 8)), "--classes", "6", "--features", "32")
    run_measured(ecgl("generate", "sbm", str(folder / "sbm.ecgl"), *sizes))
    run_measured(ecgl("generate", "kron", str(folder / "kron.ecgl"), "--scale", str(scale), "--features", "16"))
    edges = np.random.default_rng(0).integers(0, 1 << scale, (2, 8 << scale))
    np.savez(folder / "graph.npz", edge_index=edges, num_nodes=1 << scale)
    settings = {"tasks": {"classes_per_task": 2}, "learn": {"epochs": 5, "hidden": [64]}, "bank": {"budget": 200}}
    config.write_text(json.dumps({"store": str(folder / "sbm.ecgl"), **settings}), encoding="utf-8")


def _commands(folder: Path, config: Path) -> list[tuple[str, list[str]]]:
    """What is compared; OUT is where each puts its result."""
    kron = str(folder / "kron.ecgl")
    return [
        ("rank", ["rank", kron, "--kind", "both", "--max-iter", "20", "--out", "OUT.parquet"]),
        ("run", ["run", str(config), "--out", "OUT"]),
        ("infer", ["infer", str(folder / "run-alone"), str(folder / "sbm.ecgl"), "--out", "OUT.parquet"]),
        ("ingest", ["ingest", "npz", str(folder / "graph.npz"), "OUT.ecgl", "--symmetrise"]),
    ]


def _both(name: str, arguments: list[str], folder: Path, options: list[str], made: list[Machine]) -> dict[str, Any]:
    row: dict[str, Any] = {"command": name}
    for how, more in (("alone", []), ("workers", options)):
        out = str(folder / f"{name}-{how}")
        before = sum(machine.cable_bytes() for machine in made)
        started = time.perf_counter()
        subprocess.run(ecgl(*(part.replace("OUT", out) for part in arguments), *more), check=True, capture_output=True)
        row[f"seconds_{how}"] = time.perf_counter() - started
        row[f"cable_bytes_{how}"] = sum(machine.cable_bytes() for machine in made) - before
    wanted = _results(folder, f"{name}-alone")
    row["same_bytes"] = bool(wanted) and wanted == _results(folder, f"{name}-workers")
    print(json.dumps(row), flush=True)
    return row


def _results(folder: Path, name: str) -> list[str]:
    """What a command has left that does not speak of clocks."""
    files = [folder / f"{name}.parquet", folder / f"{name}.ecgl" / "manifest.json"]  # which has the crc of every file
    files += [folder / name / part for part in ("bank.arrow", "metrics.parquet")]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.exists()]


@contextmanager
def _cluster(folder: Path, address: str, made: list[Machine]) -> Iterator[list[str]]:
    """A scheduler here and a worker on every machine; gives the options of commands that use them."""
    file = folder / "scheduler.json"
    tls = ["--tls", str(folder / "tls")]
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(ecgl("scheduler", str(file), "--host", address, *tls), **silent)]
    try:
        while not file.exists():
            time.sleep(0.1)
        for machine in made:
            worker = ecgl("worker", str(file), "--threads", "1", "--memory", "3GiB", *tls)
            started.append(subprocess.Popen([*machine.under, *worker], **silent))
        yield ["--scheduler", str(file), *tls]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", type=int, nargs="*", default=[20, 22, 24])
    parser.add_argument("--sweeps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--network-scales", type=int, nargs="*", default=[20, 22, 24])
    parser.add_argument("--keep", action="store_true", help="keep what the record has of other scales")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    found = run(given.work, given.scales, given.sweeps, given.repeats, given.network_scales)
    save("cluster", _with_kept(found) if given.keep else found)


def _with_kept(found: dict[str, Any]) -> dict[str, Any]:
    """What was found, and what the record has of scales that were not asked for."""
    kept = json.loads((RESULTS / "cluster.json").read_text(encoding="utf-8"))
    for part in ("rows", "network"):
        scales = {row["scale"] for row in found[part]}
        found[part] = sorted(
            [*found[part], *(row for row in kept[part] if row["scale"] not in scales)], key=lambda row: row["scale"]
        )
    return found


if __name__ == "__main__":
    main()
