"""Stores to be damaged: dense or sparse features, blocks of equal size that only their bytes tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ecgl_scale import GraphStore
from ecgl_scale.base.events import ignore_events
from ecgl_scale.store.verify import verify_store
from tests.resources import at

KINDS = ("dense", "sparse")
RANGE_ROWS = 1 << 16
NUM_NODES = 2 * RANGE_ROWS + 500
"""Three blocks of edges, of which the first two are equally large."""


def build(path: Path, kind: str, seed: int, *, num_nodes: int = NUM_NODES) -> Path:
    rng = np.random.default_rng(seed)
    # One edge into every node: blocks of equal size, which only their bytes tell apart.
    edge_index = np.stack([rng.permutation(num_nodes), np.arange(num_nodes)])
    x: Any
    if kind == "dense":
        x = rng.normal(size=(num_nodes, 2)).astype(np.float32)
    else:
        columns = rng.integers(0, 50, num_nodes)
        values = rng.random(num_nodes).astype(np.float32) + 1
        x = sparse.csr_matrix((values, columns, np.arange(num_nodes + 1)), shape=(num_nodes, 50))
    y = rng.permutation(np.arange(num_nodes) % 5)
    GraphStore.from_edge_index(edge_index, x, y, path, columns={"year": rng.integers(1990, 2020, num_nodes)})
    return path


def verify(path: Path) -> None:
    verify_store(path, at(on_event=ignore_events))
