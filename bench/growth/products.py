"""A products-sized block model: one hundredth more nodes and edges, against doing everything again.

The generated graph's last hundredth of nodes is what comes new, with one hundredth of all edges: half of those that
touch them. Nodes have a random month of twelve, the new ones the thirteenth; a task is a month.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.growth.parts import Array
from bench.harness import Measured, ecgl, run_measured
from bench.inference import _size as size_options
from ecgl_scale.store.graph import GraphStore

NUM_MONTHS = 12


@dataclass(frozen=True)
class Pieces:
    """Raw files: those of everything, of the base, and of each part that comes later."""

    whole: list[str]
    base: list[str]
    later: list[list[str]]
    num_new_nodes: int
    num_new_edges: int
    """Each undirected edge once; of all later parts."""


def cut(work: Path, num_nodes: int | None, num_parts: int = 1) -> Pieces:
    """Generate the graph and write its pieces; every part is one hundredth of the graph."""
    made = work / "made.ecgl"
    run_measured(ecgl("generate", "sbm", str(made), *size_options(num_nodes)))
    graph = GraphStore.open(made)
    random = np.random.default_rng(0)
    size = graph.num_nodes // 100
    bounds = [graph.num_nodes - size * (num_parts - part) for part in range(num_parts + 1)]
    month = random.integers(0, NUM_MONTHS, graph.num_nodes).astype(np.uint8)
    month[bounds[0] :] = NUM_MONTHS
    pairs = _undirected(graph)
    part_of = np.searchsorted(bounds, pairs.max(axis=1), side="right")
    kept = (part_of == 0) | (random.random(part_of.size) < 0.5)
    pairs, part_of = pairs[kept], part_of[kept]
    x = np.empty((graph.num_nodes, graph.num_features), np.float32)
    features = graph.require_features()
    for block in features.blocks():
        features.read(block, x[block.start : block.stop])  # type: ignore[union-attr, call-arg]
    columns = {"x": x, "y": graph.column("label"), "month": month}

    def piece(name: str, start: int, stop: int, edges: Array) -> list[str]:
        folder = work / name
        folder.mkdir()
        edges.astype(np.uint32).tofile(folder / "edges.bin")
        np.save(folder / "x.npy", columns["x"][start:stop])
        np.save(folder / "y.npy", columns["y"][start:stop])
        np.savez(folder / "columns.npz", month=columns["month"][start:stop])
        options = ["--features", "x.npy", "--labels", "y.npy", "--columns", "columns.npz"]
        return [str(folder / "edges.bin"), *(str(folder / part) if "." in part else part for part in options)]

    whole = piece("whole", 0, graph.num_nodes, pairs)
    base = piece("base", 0, bounds[0], pairs[part_of == 0])
    later = [
        piece(f"part{part}", bounds[part], bounds[part + 1], pairs[part_of == part + 1]) for part in range(num_parts)
    ]
    return Pieces(whole, base, later, graph.num_nodes - bounds[0], int((part_of > 0).sum()))


def _undirected(graph: GraphStore) -> Array:
    found = []
    for block, rows in graph.edges.stream():
        dst = np.repeat(np.arange(block.start, block.stop), np.diff(rows.offsets))
        once = rows.values < dst
        found.append(np.stack([rows.values[once], dst[once]], axis=1).astype(np.uint32))
    return np.concatenate(found)


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


def one_hundredth(work: Path, num_nodes: int | None, epochs: int) -> dict[str, Any]:
    """Seconds and bytes of each step, of what is new and of everything, and how many times less the first is."""
    pieces = cut(work, num_nodes)
    store, whole, model = work / "growing.ecgl", work / "whole.ecgl", work / "model"
    build("ingest", pieces.base, store)
    config = write_config(work, store, epochs)
    run_measured(ecgl("run", str(config), "--out", str(model), "--json"))
    tables = [str(work / name) for name in ("new.parquet", "all.parquet")]
    new = {
        "append": build("append", pieces.later[0], store),
        "infer": run_measured(ecgl("infer", str(model), str(store), "--nodes", "new", "--out", tables[0])),
        "update": run_measured(ecgl("update", str(model), str(store), "--out", str(work / "updated"), "--json")),
    }
    run = str(work / "run")
    everything = {
        "append": build("ingest", pieces.whole, whole),
        "infer": run_measured(ecgl("infer", str(model), str(store), "--out", tables[1])),
        "update": run_measured(ecgl("run", str(config), "--set", f"store={whole}", "--out", run, "--json")),
    }
    updated, ran = (json.loads(one["update"].stdout) for one in (new, everything))
    if updated["matrix"] != ran["matrix"]:
        raise RuntimeError("the update and the run on the whole differ")
    written = {
        "append": (_json(new["append"], "written_bytes"), _json(everything["append"], "total_bytes")),
        "update": (new["update"].written_bytes, everything["update"].written_bytes),
        "infer": tuple(Path(table).stat().st_size for table in tables),
    }
    return {
        "num_nodes": _json(everything["append"], "num_nodes"),
        "num_edges": _json(everything["append"], "num_edges"),
        "num_new_nodes": pieces.num_new_nodes,
        "num_new_edges": _json(new["append"], "new_edges"),
        "epochs": epochs,
        "aa": ran["aa"],
        "stages": {"update": _stages(updated), "run": _stages(ran)},
        "steps": {
            name: {
                "new_seconds": new[name].seconds,
                "everything_seconds": everything[name].seconds,
                "times_faster": everything[name].seconds / new[name].seconds,
                "new_bytes": written[name][0],
                "everything_bytes": written[name][1],
                "times_fewer_bytes": written[name][1] / max(written[name][0], 1),
                "peak_anon_bytes": new[name].peak_anon_bytes,
            }
            for name in new
        },
    }


def _stages(results: dict[str, Any]) -> dict[str, float]:
    return {name: stage["seconds"] for name, stage in results["stages"].items()}


def _json(measured: Measured, name: str) -> int:
    return int(json.loads(measured.stdout)[name])
