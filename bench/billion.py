"""The billion-edge job: a graph of a billion edges through every command under one budget, from its making to a report.

    python -m bench.billion [--nodes 32000000] [--memory 4GiB] [--kron 26] [--page report.html]

generate    a block model: 32 million nodes, 1.04 billion edges, 64 float16 features, 20 classes
verify      every byte and every edge
rank        both scores of all nodes
run         five tasks, by ``configs/billion.yaml``
infer       predictions of all nodes
report      the run's page
kron        with ``--kron SCALE`` a Kronecker graph besides: built, verified, and five sweeps of PageRank

Each is an ``ecgl`` command, watched from outside: seconds, peak of RssAnon + RssShmem, bytes read from the disk and
written. The page cache is dropped before each. The seconds of the job are those of all commands after the generation.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.harness import DEFAULT_WORK, drop_page_cache, ecgl, run_measured, save
from ecgl_scale.units import parse_bytes

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "billion.yaml"
NUM_CLASSES, NUM_FEATURES, DEGREE = 20, 64, 32.5
SWEEPS = 5
RESULTS = ("stages", "aa", "af", "aa_seen", "af_seen", "num_epochs")
"""Of the results of the run, what the record keeps."""


def run(work: Path, num_nodes: int, memory: str, config: Path = CONFIG) -> dict[str, Any]:
    """All commands, one after the other, on a graph of so many nodes."""
    store, model, page = work / "billion.ecgl", work / "run", work / "report.html"
    own = work / "billion.yaml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    own.write_text(yaml.safe_dump({**settings, "store": str(store), "memory": memory}), encoding="utf-8")
    size = ("--nodes", str(num_nodes), "--classes", str(NUM_CLASSES), "--features", str(NUM_FEATURES))
    kind = ("--feature-dtype", "float16", "--average-degree", str(DEGREE), "--signal", "2", "--homophily", "0.6")
    given = ("--memory", memory)
    stages: dict[str, Any] = {}
    stages["generate"] = made = _stage("generate", "sbm", str(store), *size, *kind, *given, "--json")
    stages["verify"] = _stage("verify", str(store), "--json")
    scores = str(work / "scores.parquet")
    stages["rank"] = _stage("rank", str(store), "--kind", "both", "--out", scores, *given, "--json")
    stages["run"] = _stage("run", str(own), "--out", str(model), "--json")
    predictions = str(work / "predictions.parquet")
    stages["infer"] = _stage("infer", str(model), str(store), "--out", predictions, *given, "--json")
    stages["report"] = _stage("report", str(model), "--html", str(page))
    info, ranked, learned = (stages[name].pop("said") for name in ("generate", "rank", "run"))
    for name in ("verify", "infer", "report"):
        del stages[name]["said"]
    stages["rank"] |= {"seconds_of_stages": ranked["seconds"], "sweeps": ranked["importance"]["iterations"]}
    stages["run"] |= {
        key: learned[key] for key in ("stages", "aa", "af", "aa_seen", "af_seen", "num_epochs") if key in learned
    }
    peak = max(stage["peak_anon_bytes"] for stage in stages.values())
    return {
        "num_nodes": info["num_nodes"],
        "num_edges": info["num_edges"],
        "store_bytes": info["total_bytes"],
        "memory": memory,
        "settings": settings,
        "seconds": sum(stage["seconds"] for stage in stages.values()) - made["seconds"],
        "peak_anon_bytes": peak,
        "holds_budget": peak <= parse_bytes(memory),
        "stages": stages,
    }


def run_kron(work: Path, scale: int, memory: str) -> dict[str, Any]:
    """A Kronecker graph with 16 edges a node, in both directions: built, verified, swept."""
    store, scores = work / "kron.ecgl", work / "kron.parquet"
    sweeps = ("--ignore-features", "--max-iter", str(SWEEPS), "--tol", "1e-30")
    stages: dict[str, Any] = {}
    stages["generate"] = _stage("generate", "kron", str(store), "--scale", str(scale), "--memory", memory, "--json")
    stages["verify"] = _stage("verify", str(store), "--json")
    ranking = ("rank", str(store), "--kind", "importance", "--out", str(scores), *sweeps, "--memory", memory, "--json")
    stages["rank"] = _stage(*ranking)
    info, _, ranked = (stages[name].pop("said") for name in ("generate", "verify", "rank"))
    stages["rank"] |= {"seconds_of_stages": ranked["seconds"], "sweeps": ranked["importance"]["iterations"]}
    shutil.rmtree(store)
    peak = max(stage["peak_anon_bytes"] for stage in stages.values())
    return {
        "scale": scale,
        "num_nodes": info["num_nodes"],
        "num_edges": info["num_edges"],
        "store_bytes": info["total_bytes"],
        "peak_anon_bytes": peak,
        "holds_budget": peak <= parse_bytes(memory),
        "stages": stages,
    }


def _stage(*command: str) -> dict[str, Any]:
    """What a command took, and what it said where it speaks JSON."""
    is_cold = drop_page_cache()
    measured = run_measured(ecgl(*command))
    said = json.loads(measured.stdout) if "--json" in command else None
    found = {
        "seconds": measured.seconds,
        "cpu_seconds": measured.cpu_seconds,
        "peak_anon_bytes": measured.peak_anon_bytes,
        "read_bytes": measured.read_bytes,
        "written_bytes": measured.written_bytes,
        "page_cache": "dropped before" if is_cold else "could not be dropped",
    }
    print(f"{command[0]}: {measured.seconds:.1f} s, peak {measured.peak_anon_bytes / 2**20:.0f} MiB", flush=True)
    return {**found, "said": said}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=32_000_000)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--kron", type=int, help="scale of a Kronecker graph to build and rank besides")
    parser.add_argument("--page", type=Path, help="where to keep the report's page")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    given = parser.parse_args(arguments)
    work = given.work / "billion"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        found = run(work, given.nodes, given.memory)
        if given.page is not None:
            shutil.copyfile(work / "report.html", given.page)
        save("billion", found)
        if given.kron is not None:
            for path in work.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            save("billion", {**found, "kron": run_kron(work, given.kron, given.memory)})
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
