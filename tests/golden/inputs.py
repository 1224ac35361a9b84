"""The graph of every golden case, made of integers alone: no generator of numpy's, no function of libm's.

numpy may change what its generators draw from one version to the next, and libraries differ in the last digit of a
logarithm. Features here are multiples of 1/256, which float32 holds exactly, so the inputs are the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_NODES = 421
"""A prime: no block, batch or vector width divides it."""
NUM_CLASSES = 8
NUM_FEATURES = 12
NUM_COLUMNS = 64
"""Of the sparse features."""
NUM_EDGES = 3 * NUM_NODES


@dataclass(frozen=True)
class Drawn:
    """A directed graph with repeated edges, self loops, nodes without neighbours and nodes without a label."""

    edge_index: NDArray[np.int64]
    x: NDArray[np.float32]
    x_sparse: dict[str, NDArray[Any]]
    y: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]


def draw_graph() -> Drawn:
    """The same graph every time: half of the edges inside a class, features around the class's own centre."""
    y = _labels()
    return Drawn(_edges(y), _dense(y), _sparse(y), y, {"year": 2001 + _below(3, NUM_NODES, 3), "split": _split()})


def write_inputs(directory: Path) -> None:
    """The graph in every format that the cases ingest."""
    drawn = draw_graph()
    src, dst = drawn.edge_index
    common = {"edge_index": drawn.edge_index, "y": drawn.y, **drawn.columns}
    np.savez(directory / "dense.npz", x=drawn.x, **common)
    np.savez(directory / "sparse.npz", **drawn.x_sparse, **common)
    np.savez(directory / "columns.npz", **drawn.columns)
    np.save(directory / "x.npy", drawn.x)
    np.save(directory / "y.npy", drawn.y)
    lines = [f"{source},{target}" for source, target in zip(src.tolist(), dst.tolist(), strict=True)]
    (directory / "edges-1.csv").write_text("\n".join(["src,dst", *lines[:500]]) + "\n")
    (directory / "edges-2.csv").write_text("\n".join(["src,dst", *lines[500:]]) + "\n")
    np.ascontiguousarray(drawn.edge_index.T, "<u4").tofile(directory / "edges.u32")


def _labels() -> NDArray[np.int64]:
    """Classes from 20 % down to 8 % of the nodes, a class of one node, which no task can have, and some without."""
    share = _uniform(NUM_NODES, 1)
    y = (NUM_CLASSES * share * (1 + share) / 2).astype(np.int64)
    y[_below(40, NUM_NODES, 2) == 0] = -1
    y[100] = NUM_CLASSES
    return y


def _split() -> NDArray[np.int8]:
    drawn = _below(10, NUM_NODES, 4)
    return np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 2], np.int8)[drawn]


def _edges(y: NDArray[np.int64]) -> NDArray[np.int64]:
    src, anywhere = _below(NUM_NODES, NUM_EDGES, 5), _below(NUM_NODES, NUM_EDGES, 6)
    order = np.argsort(y, kind="stable")
    first, last = np.searchsorted(y[order], y[src]), np.searchsorted(y[order], y[src], side="right")
    own = order[first + _hash(NUM_EDGES, 7).astype(np.int64) % (last - first)]
    drawn = np.stack([src, np.where(_below(2, NUM_EDGES, 8) == 0, own, anywhere)])
    loops = np.arange(0, NUM_NODES, 20)
    return np.concatenate([drawn, drawn[:, :60], np.stack([loops, loops])], axis=1)


def _dense(y: NDArray[np.int64]) -> NDArray[np.float32]:
    centres = _below(257, (NUM_CLASSES + 2) * NUM_FEATURES, 9).reshape(-1, NUM_FEATURES) - 128
    noise = sum(_below(257, NUM_NODES * NUM_FEATURES, stream) - 128 for stream in range(10, 14))
    return ((centres[y] + np.reshape(noise, (NUM_NODES, NUM_FEATURES))) / 256).astype(np.float32)


def _sparse(y: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Five columns a node or fewer, some of them likely in its class; one node has none."""
    each = 5
    own = (7 * y[:, None] + _below(12, NUM_NODES * each, 14).reshape(-1, each)) % NUM_COLUMNS
    anywhere = _below(NUM_COLUMNS, NUM_NODES * each, 15).reshape(-1, each)
    drawn = np.where(_below(3, NUM_NODES * each, 16).reshape(-1, each) == 0, anywhere, own)
    rows = [np.unique(row) if node != 7 else row[:0] for node, row in enumerate(drawn)]
    indptr = np.cumsum([0, *map(len, rows)])
    return {
        "x_data": ((1 + _below(8, int(indptr[-1]), 17)) / 4).astype(np.float32),
        "x_indices": np.concatenate(rows),
        "x_indptr": indptr,
        "x_shape": np.array([NUM_NODES, NUM_COLUMNS]),
    }


def _below(end: int, count: int, stream: int) -> NDArray[np.int64]:
    return (_hash(count, stream) % np.uint64(end)).astype(np.int64)


def _uniform(count: int, stream: int) -> NDArray[np.float64]:
    return _hash(count, stream).astype(np.float64) / 2**40


def _hash(count: int, stream: int) -> NDArray[np.uint64]:
    """40 bits of splitmix64, in wrapping integers."""
    z = (np.arange(count, dtype=np.uint64) + np.uint64(stream << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(24))
