"""One hundredth more nodes and edges of a products-sized graph, against doing everything again.

Every step is a command, as a user runs it. What a command takes on a graph of ten thousand nodes is its fixed cost (the
start of Python, imports, compiled kernels that are loaded); seconds are given with it and without.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.growth.pieces import Pieces, cut
from bench.harness import Measured, ecgl, run_measured, spread

TINY_NODES = 10_000
LEAST_SECONDS = 0.05
"""A difference of two commands that is smaller is noise, and counts as so much."""
STEPS = ("append", "update", "infer")
Json = dict[str, Any]
Times = dict[str, tuple[list[Measured], list[Measured]]]
"""Of each step, what is new and everything."""


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


def one_hundredth(work: Path, num_nodes: int | None, epochs: int, repeats: int) -> dict[str, Any]:
    """Seconds and bytes of each step on two graphs: edges all over it, and edges to near nodes.

    On the second one learning is no other work than on the first, so it is left out there.
    """
    found: dict[str, Any] = {"epochs": epochs, "fixed_cost_nodes": TINY_NODES}
    for name, is_near in (("all_over", False), ("near", True)):
        asked = {"epochs": 1 if is_near else epochs, "is_near": is_near}
        _measure(work / "first", TINY_NODES, 1, **asked)  # compiles, and fills caches
        fixed = _measure(work / "tiny", TINY_NODES, repeats, **asked)[1]
        pieces, times = _measure(work / name, num_nodes, repeats, **asked)
        found[name] = {"num_reached": pieces.num_reached, **_describe(pieces, times, fixed)}
        print(json.dumps({name: found[name]["steps"]}), flush=True)
        for folder in ("first", "tiny", name):
            shutil.rmtree(work / folder)
    return found


def _measure(work: Path, num_nodes: int | None, repeats: int, *, epochs: int, is_near: bool) -> tuple[Pieces, Times]:
    pieces = cut(work, num_nodes, is_near=is_near)
    base, store, whole, model = work / "base.ecgl", work / "growing.ecgl", work / "whole.ecgl", work / "model"
    build("ingest", pieces.base, base)
    config = write_config(work, store, epochs)
    _copy(base, store)
    run_measured(ecgl("run", str(config), "--out", str(model), "--json"))

    def again(target: Path, step: Callable[[], Measured], before: Callable[[], object] = lambda: None) -> Measured:
        """``step`` writes a target that must not be there yet."""
        shutil.rmtree(target, ignore_errors=True)
        before()
        return step()

    def repeat(once: Callable[[], Measured], at_most: int = repeats) -> list[Measured]:
        return [once() for _ in range(min(repeats, at_most))]

    def infer(name: str, *which: str) -> Measured:
        return run_measured(ecgl("infer", str(model), str(store), *which, "--out", str(work / name)))

    appends = repeat(lambda: again(store, lambda: build("append", pieces.later[0], store), lambda: _copy(base, store)))
    times = {
        "append": (appends, repeat(lambda: again(whole, lambda: build("ingest", pieces.whole, whole)), 2)),
        "infer": (repeat(lambda: infer("new.parquet", "--nodes", "new")), repeat(lambda: infer("all.parquet"), 2)),
    }
    if not is_near:
        updated, ran = work / "updated", work / "run"
        update = ecgl("update", str(model), str(store), "--out", str(updated), "--json")
        run = ecgl("run", str(config), "--set", f"store={whole}", "--out", str(ran), "--json")
        # one run on everything: it takes minutes
        times["update"] = (repeat(lambda: again(updated, lambda: run_measured(update))), [run_measured(run)])
        if _results(times, 0)["matrix"] != _results(times, 1)["matrix"]:
            raise RuntimeError("the update and the run on the whole differ")
    return pieces, times


def _copy(store: Path, target: Path) -> None:
    """By links: a store's files never change, and its manifest is replaced."""
    shutil.copytree(store, target, copy_function=os.link)


def _describe(pieces: Pieces, times: Times, fixed: Times) -> dict[str, Any]:
    appended, ingested = (json.loads(side[-1].stdout) for side in times["append"])
    written = {
        "append": (appended["written_bytes"], ingested["total_bytes"]),
        "infer": tuple(_table_bytes(side) for side in times["infer"]),
    }
    found: dict[str, Any] = {
        "num_nodes": ingested["num_nodes"],
        "num_edges": ingested["num_edges"],
        "num_new_nodes": pieces.num_new_nodes,
        "num_new_edges": appended["new_edges"],
        "steps": {},
    }
    if "update" in times:
        written["update"] = tuple(side[-1].written_bytes for side in times["update"])
        ran = _results(times, 1)
        found |= {"aa": ran["aa"], "stages": {"update": _stages(_results(times, 0)), "run": _stages(ran)}}
    for name in (name for name in STEPS if name in times):
        found["steps"][name] = {
            **_seconds(times[name], fixed[name]),
            "new_bytes": written[name][0],
            "everything_bytes": written[name][1],
            "times_fewer_bytes": written[name][1] / max(written[name][0], 1),
            "peak_anon_bytes": max(one.peak_anon_bytes for one in times[name][0]),
        }
    return found


def _seconds(times: tuple[list[Measured], list[Measured]], fixed: tuple[list[Measured], list[Measured]]) -> Json:
    """By the clock (medians), and of the processors (the least), which a shared machine changes less."""
    sides = {"new": times[0], "everything": times[1], "new_fixed": fixed[0], "everything_fixed": fixed[1]}
    found: Json = {f"{name}_seconds": spread([one.seconds for one in side]) for name, side in sides.items()}
    found |= {f"{name}_cpu_seconds": min(one.cpu_seconds for one in side) for name, side in sides.items()}
    for kind, seconds in (
        ("times_faster", [found[f"{name}_seconds"]["median"] for name in sides]),
        ("times_less_cpu", [found[f"{name}_cpu_seconds"] for name in sides]),
    ):
        new, everything, fixed_of_new, fixed_of_everything = seconds
        found[kind] = everything / new
        found[f"{kind}_without_fixed"] = (everything - fixed_of_everything) / max(new - fixed_of_new, LEAST_SECONDS)
    return found


def _table_bytes(side: list[Measured]) -> int:
    return Path(side[-1].command[-1]).stat().st_size


def _results(times: Times, side: int) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(times["update"][side][-1].stdout)
    return results


def _stages(results: dict[str, Any]) -> dict[str, Json]:
    """Seconds and bytes: what takes more than a second is noted for a resume, so a slow machine writes more."""
    kept = ("seconds", "written_bytes")
    return {name: {key: stage[key] for key in kept} for name, stage in results["stages"].items()}
