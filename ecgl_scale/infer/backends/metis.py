"""METIS in a process of its own: ``python -m ecgl_scale.infer.backends.metis STORE PARTS TARGET.npy``.

It may die of memory, of 2^31 edges or of nothing in particular; the caller only sees that it did.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np


def assign_parts(store: Path, num_parts: int, target: Path) -> None:
    """Write a part number for each node. Memory: the whole graph, several times."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl
    import torch

    from ecgl_scale.store.graph import GraphStore

    graph = GraphStore.open(store)
    source, destination = graph.to_edge_index()
    whole = dgl.graph((torch.from_numpy(source), torch.from_numpy(destination)), num_nodes=graph.num_nodes)
    whole = dgl.to_simple(dgl.add_reverse_edges(dgl.remove_self_loop(whole)))
    parts = dgl.metis_partition_assignment(whole, num_parts)
    with target.open("wb") as file:
        np.save(file, parts.numpy().astype(np.int32), allow_pickle=False)


if __name__ == "__main__":
    assign_parts(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
