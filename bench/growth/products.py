"""One hundredth more nodes and edges of a products-sized graph, against doing everything again.

    commands    each step as a user runs it, with the start of its process. What a command takes on a graph of ten
                thousand nodes is its fixed cost: Python, imports, compiled kernels that are loaded
    running     the functions behind them in a process that runs already, which has done the same on a tiny graph

A folder is prepared once and then measured step by step, so that no piece needs a quiet machine for long.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.growth.pieces import Pieces, copy_by_links, cut
from bench.harness import Measured, ecgl, run_measured, spread

TINY_NODES = 10_000
STEPS = ("append", "infer", "update", "run")
GRAPHS = {"all_over": False, "near": True}
Json = dict[str, Any]


def write_config(work: Path, store: Path, epochs: int, **changed: Any) -> Path:
    """The settings of all runs of these cases."""
    path = work / f"{store.stem}.yaml"
    config = {
        "store": str(store),
        "tasks": {"kind": "time", "column": "month"},
        "learn": {"hidden": [256], "epochs": epochs},
        "bank": {"budget": 1000},
        **changed,
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def build(command: str, piece: list[str], store: Path) -> Measured:
    """``ecgl ingest edges`` or ``ecgl append edges`` of a piece."""
    options = ["--symmetrise"] if command == "ingest" else []
    return run_measured(ecgl(command, "edges", piece[0], str(store), *piece[1:], *options, "--json"))


def prepare(work: Path, num_nodes: int | None, epochs: int, *, is_near: bool) -> None:
    """Pieces, the store of what there was first, and a model of it, unless they are there."""
    if (work / "model" / "sealed.json").exists():
        return
    shutil.rmtree(work, ignore_errors=True)
    pieces = cut(work, num_nodes, is_near=is_near)
    shutil.rmtree(work / "made.ecgl")
    build("ingest", pieces.base, work / "base.ecgl")
    copy_by_links(work / "base.ecgl", work / "growing.ecgl")
    config = write_config(work, work / "growing.ecgl", epochs)
    run_measured(ecgl("run", str(config), "--out", str(work / "model"), "--json"))
    pieces.write(work)


def one_hundredth(
    work: Path, num_nodes: int | None, epochs: int, repeats: int, steps: tuple[str, ...], known: Json
) -> Json:
    """Measure some steps on the graphs that have them; others are kept as they are ``known``.

    On the graph of near nodes learning is no other work than on the other one, so it is left out there.
    """
    found: Json = {**known, "epochs": epochs, "fixed_cost_nodes": TINY_NODES}
    for name, is_near in GRAPHS.items():
        own = [step for step in steps if not is_near or step in ("append", "infer")]
        folder, tiny = work / name, work / f"tiny-{name}"
        for place, size in ((folder, num_nodes), (tiny, TINY_NODES)):
            prepare(place, size, 1 if is_near else epochs, is_near=is_near)
        pieces = Pieces.read(folder)
        graph = found.setdefault(name, {}) | {"num_reached": pieces.num_reached, "num_nodes": pieces.num_nodes}
        graph |= {"num_new_nodes": pieces.num_new_nodes}
        for step in own:
            running = graph.setdefault("running", {})
            running[step] = _running(step, folder, tiny, repeats)
            if step != "run":  # it takes minutes, and the start of its command is nothing beside that
                graph.setdefault("commands", {})[step] = _commands(step, folder, tiny, repeats)
            print(json.dumps({name: {step: running[step]}}), flush=True)
        found[name] = graph
    return found


def _running(step: str, work: Path, tiny: Path, repeats: int) -> Json:
    """A step in a process that has done it before."""
    times = 1 if step == "run" else repeats
    command = [sys.executable, "-m", "bench.growth.running", step, str(work), str(tiny), str(times)]
    sides = json.loads(run_measured(command).stdout.splitlines()[-1])
    return {name: _summary(uses) for name, uses in sides.items()}


def _commands(step: str, work: Path, tiny: Path, repeats: int) -> Json:
    """A step as commands, on the graph and on the tiny one."""
    found = {name: _summary([vars(one) for one in side]) for name, side in _sides(step, work, repeats).items()}
    for name, side in _sides(step, tiny, repeats).items():
        found[name]["fixed"] = _summary([vars(one) for one in side])
    return found


def _sides(step: str, work: Path, repeats: int) -> dict[str, list[Measured]]:
    pieces, store, model, whole = Pieces.read(work), work / "growing.ecgl", work / "model", work / "whole.ecgl"

    def again(target: Path, measure: Callable[[], Measured], before: Callable[[], object] | None = None) -> Measured:
        """``measure`` writes a target that must not be there yet."""
        shutil.rmtree(target, ignore_errors=True)
        if before is not None:
            before()
        return measure()

    def grow() -> Measured:
        return again(store, lambda: build("append", pieces.later[0], store), lambda: _copy_base(work))

    def ingest() -> Measured:
        return again(whole, lambda: build("ingest", pieces.whole, whole))

    def infer(*which: str) -> Measured:
        return run_measured(ecgl("infer", str(model), str(store), *which, "--out", str(work / "p.parquet")))

    def update(*how: str) -> Measured:
        target = work / "updated"
        command = ecgl("update", str(model), str(store), "--out", str(target), "--json", *how)
        return again(target, lambda: run_measured(command))

    if step == "append":
        return {"new": [grow() for _ in range(repeats)], "everything": [ingest() for _ in range(min(repeats, 2))]}
    grow()
    if step == "infer":
        new = [infer("--nodes", "new") for _ in range(repeats)]
        return {"new": new, "everything": [infer() for _ in range(min(repeats, 2))]}
    return {
        "new": [update() for _ in range(repeats)],
        "untested": [update("--evaluate", "none") for _ in range(repeats)],
    }


def _copy_base(work: Path) -> None:
    copy_by_links(work / "base.ecgl", work / "growing.ecgl")


def _summary(uses: list[Json]) -> Json:
    """By the clock (medians), by the processors (the least), and the bytes of the last."""
    return {
        "seconds": spread([one["seconds"] for one in uses]),
        "cpu_seconds": min(one["cpu_seconds"] for one in uses),
        "written_bytes": uses[-1]["written_bytes"],
    }
