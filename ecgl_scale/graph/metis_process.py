"""METIS in a process of its own: ``python -m ecgl_scale.graph.metis_process STORE PARTS TARGET.npy``.

It may die of memory, of 2^31 edges or of nothing in particular; the caller only sees that it did.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np


def assign_parts(store: str, num_parts: int, target: Path) -> None:
    """Write a part number for each node. Memory: the whole graph, several times."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl
    import torch

    from ecgl_scale.store.graph import GraphStore

    graph = GraphStore.open(store)
    edges = graph.to_edge_index()
    if graph.manifest.edges.self_loops != "dropped":
        edges = edges[:, edges[0] != edges[1]]
    whole = dgl.graph((torch.from_numpy(edges[0]), torch.from_numpy(edges[1])), num_nodes=graph.num_nodes)
    del edges
    parts = dgl.metis_partition_assignment(whole, num_parts)  # makes the edges symmetric itself
    with target.open("wb") as file:
        np.save(file, parts.numpy().astype(np.int32), allow_pickle=False)


if __name__ == "__main__":
    assign_parts(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
