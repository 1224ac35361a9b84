"""A products-sized graph cut into what is there first and what comes later, as raw files.

The last hundredths of nodes are what comes new, each with one hundredth of all edges: half of those that touch them.
Nodes have a random month of twelve, the new ones the thirteenth; a task is a month.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.growth.parts import Array
from bench.harness import ecgl, run_measured
from bench.inference import _size as size_options
from ecgl_scale.store.graph import GraphStore

NUM_MONTHS = 12
PIECES_NAME = "pieces.json"
NUM_HOPS = 2
"""As many as the model has layers."""
REACH = 2000
"""In the graph of near nodes, edges lead so far back at most."""


@dataclass(frozen=True)
class Pieces:
    """Raw files: those of everything, of the base, and of each part that comes later."""

    whole: list[str]
    base: list[str]
    later: list[list[str]]
    num_nodes: int
    num_new_nodes: int
    num_reached: int
    """Nodes that the new ones see within ``NUM_HOPS``, themselves too."""

    @classmethod
    def read(cls, work: Path) -> Pieces:
        """What ``write`` left in a folder."""
        return cls(**json.loads((work / PIECES_NAME).read_text(encoding="utf-8")))

    def write(self, work: Path) -> None:
        """Keep what is where, so that steps can be measured one at a time."""
        (work / PIECES_NAME).write_text(json.dumps(asdict(self)), encoding="utf-8")


def copy_by_links(store: Path, target: Path) -> None:
    """A store's files never change, and its manifest is replaced."""
    shutil.copytree(store, target, copy_function=os.link)


def cut(work: Path, num_nodes: int | None, num_parts: int = 1, *, is_near: bool = False) -> Pieces:
    """Generate the graph and write its pieces; every part is one hundredth of the graph.

    The block model's edges go all over the graph. With ``is_near`` each node has as many, but to some of the
    ``REACH`` nodes that came before it: new nodes then see few old ones.
    """
    work.mkdir(parents=True, exist_ok=True)
    made = work / "made.ecgl"
    run_measured(ecgl("generate", "sbm", str(made), *size_options(num_nodes)))
    graph = GraphStore.open(made)
    random = np.random.default_rng(0)
    size = graph.num_nodes // 100
    bounds = [graph.num_nodes - size * (num_parts - part) for part in range(num_parts + 1)]
    month = random.integers(0, NUM_MONTHS, graph.num_nodes).astype(np.uint8)
    month[bounds[0] :] = NUM_MONTHS
    pairs = _near_pairs(graph, random) if is_near else _undirected(graph)
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
    reached = _count_reached(pairs, bounds[0], graph.num_nodes)
    return Pieces(whole, base, later, graph.num_nodes, graph.num_nodes - bounds[0], reached)


def _undirected(graph: GraphStore) -> Array:
    found = []
    for block, rows in graph.edges.stream():
        dst = np.repeat(np.arange(block.start, block.stop), np.diff(rows.offsets))
        once = rows.values < dst
        found.append(np.stack([rows.values[once], dst[once]], axis=1).astype(np.uint32))
    return np.concatenate(found)


def _near_pairs(graph: GraphStore, random: np.random.Generator) -> Array:
    per_node = graph.num_edges // 2 // graph.num_nodes
    dst = np.repeat(np.arange(1, graph.num_nodes, dtype=np.uint32), per_node)
    back = random.integers(1, REACH + 1, dst.size, dtype=np.uint32)
    src = dst - np.minimum(back, dst)
    return np.stack([src, dst], axis=1)


def _count_reached(pairs: Array, first: int, num_nodes: int) -> int:
    seen = np.zeros(num_nodes, np.bool_)
    seen[first:] = True
    for _ in range(NUM_HOPS):
        before = seen.copy()
        for near, far in (pairs.T, pairs.T[::-1]):
            seen[near[before[far]]] = True
    return int(seen.sum())
