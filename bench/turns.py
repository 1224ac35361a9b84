"""Two checkouts of this project in turns on one machine: is the new one as fast as the old?

    python -m bench.turns --old OLD_CHECKOUT/.venv/bin/ecgl [--new NEW/.venv/bin/ecgl] [--repeats 5]

Everything is asked of the ``ecgl`` command, whose options and JSON both have, so nothing of either is imported. A round
runs every case once with each, the other one first in every second round; a case's ratio is old median / new median:
above one the new checkout is faster. A first round compiles kernels, and is not counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import DEFAULT_WORK, run_measured, save, spread

EPOCHS = 10


def _kron(ecgl: str, work: Path, scale: int) -> dict[str, float]:
    target = work / "built.ecgl"
    shutil.rmtree(target, ignore_errors=True)
    command = [ecgl, "--no-progress", "generate", "kron", str(target), "--scale", str(scale)]
    return {"build": run_measured(command).seconds}


def _ingest(ecgl: str, work: Path) -> dict[str, float]:
    """The block-model graph again, from the raw pairs of its edges: partition, sort, rows and tiles."""
    target = work / "ingested.ecgl"
    shutil.rmtree(target, ignore_errors=True)
    num_nodes = json.loads(_ask(ecgl, "info", str(work / "sbm.ecgl"), "--json"))["num_nodes"]
    command = [ecgl, "--no-progress", "ingest", "edges", str(work / "pairs.bin"), str(target)]
    return {"ingest": run_measured([*command, "--nodes", str(num_nodes), "--symmetrise"]).seconds}


def _sweeps(ecgl: str, work: Path, scale: int) -> dict[str, float]:
    store, out = work / f"kron-{scale}.ecgl", work / "scores.parquet"
    command = [ecgl, "--no-progress", "rank", str(store), "--out", str(out), "--ignore-features", "--tol", "0"]
    report = json.loads(run_measured([*command, "--max-iter", "8", "--json"]).stdout)
    return {"pagerank": statistics.median(sweep["seconds"] for sweep in report["importance"]["sweeps"])}


def _scores(ecgl: str, work: Path) -> dict[str, float]:
    store, out = work / "sbm.ecgl", work / "scores.parquet"
    command = [ecgl, "--no-progress", "rank", str(store), "--out", str(out), "--kind", "both", "--json"]
    seconds = json.loads(run_measured([*command, "--max-iter", "3", "--tol", "0"]).stdout)["seconds"]
    return {name: seconds[name] for name in ("attributes", "diversity")}


def _run(ecgl: str, work: Path) -> dict[str, float]:
    run, config = work / "run", work / "run.yaml"
    shutil.rmtree(run, ignore_errors=True)
    config.write_text(
        f"store: {work / 'sbm.ecgl'}\nmethod: ecgl\nseed: 0\ntasks: {{classes_per_task: 10}}\n"
        f"learn: {{hidden: [256], epochs: {EPOCHS}}}\nbank: {{budget: 1000}}\n",
        encoding="utf-8",
    )
    run_measured([ecgl, "--no-progress", "run", str(config), "--out", str(run)])
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    stages = {f"run {name}": stage["seconds"] for name, stage in results["stages"].items()}
    command = [ecgl, "--no-progress", "infer", str(run), str(work / "sbm.ecgl"), "--out", str(work / "p.parquet")]
    inference = json.loads(run_measured([*command, "--json"]).stdout)["seconds"]
    return {"epoch": stages.pop("run train") / results["num_epochs"], **stages, "inference": inference}


def _ask(ecgl: str, *arguments: str) -> str:
    return subprocess.run([ecgl, *arguments], capture_output=True, text=True, check=True).stdout


def _prepare(ecgl: str, work: Path, scale: int, nodes: int) -> None:
    import numpy as np

    kron, sbm = work / f"kron-{scale}.ecgl", work / "sbm.ecgl"
    if not kron.exists():
        _ask(ecgl, "--no-progress", "generate", "kron", str(kron), "--scale", str(scale))
    if not sbm.exists():
        sizes = ["--nodes", str(nodes), "--classes", "40", "--features", "128"]
        _ask(ecgl, "--no-progress", "generate", "sbm", str(sbm), *sizes)
    pairs = np.random.default_rng(0).integers(0, nodes, (10 * nodes, 2)).astype(np.uint32)
    (work / "pairs.bin").write_bytes(pairs.tobytes())


def run(old: str, new: str, work: Path, *, scale: int, nodes: int, repeats: int) -> dict[str, Any]:
    """All cases, in turns."""
    _prepare(old, work, scale, nodes)
    cases: list[Callable[[str], dict[str, float]]] = [
        lambda ecgl: _kron(ecgl, work, scale),
        lambda ecgl: _ingest(ecgl, work),
        lambda ecgl: _sweeps(ecgl, work, scale),
        lambda ecgl: _scores(ecgl, work),
        lambda ecgl: _run(ecgl, work),
    ]
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(repeats + 1):
        for side, ecgl in [("old", old), ("new", new)][:: 1 if number % 2 else -1]:
            for case in cases:
                for name, seconds in case(ecgl).items():
                    if number:
                        found.setdefault(name, {"old": [], "new": []})[side].append(seconds)
        print(f"round {number} of {repeats}", flush=True)
    rows = {}
    for name, sides in found.items():
        ratio = statistics.median(sides["old"]) / statistics.median(sides["new"])
        rows[name] = {"old_by_new": ratio, **{side: spread(values) for side, values in sides.items()}}
        print(f"{name}: {ratio:.2f}", flush=True)
    return {"scale": scale, "nodes": nodes, "seconds": rows}


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", required=True, help="The ecgl command of the older checkout.")
    parser.add_argument("--new", default=str(Path(sys.executable).with_name("ecgl")), help="That of the newer one.")
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK / "turns")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    sizes = {"scale": arguments.scale, "nodes": arguments.nodes, "repeats": arguments.repeats}
    save("turns", run(arguments.old, arguments.new, arguments.work, **sizes))


if __name__ == "__main__":
    main()
