"""One in-memory PageRank of another library on a store's graph, in a process of its own: prints JSON.

    python -m bench.pagerank_peers {scipy,dgl,networkit,scikit-network,igraph} STORE SWEEPS

Loading is not counted. ``seconds_per_sweep`` is the time of the sweeps alone; igraph solves by another method and has
no sweeps, so only ``seconds_to_solve`` is given. Each peer's ranks are compared with ours where it computes ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.store.graph import GraphStore

DAMPING = 0.85
LONG_EDGES = 300_000_000
"""A sweep over so many takes seconds, so that one measurement is enough."""


def load_csr(graph: GraphStore) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """In-edges of the whole graph: offsets and sources."""
    indptr = np.zeros(graph.num_nodes + 1, np.int64)
    indices = np.empty(graph.num_edges, np.uint32)
    position = 0
    for block, rows in graph.edges.stream():
        indptr[block.start + 1 : block.stop + 1] = rows.offsets[1:] + position
        indices[position : position + rows.values.size] = rows.values
        position += rows.values.size
    return indptr, indices


def run_scipy(graph: GraphStore, sweeps: int) -> dict[str, Any]:
    """CSR times vector, float32 values."""
    import scipy.sparse

    indptr, indices = load_csr(graph)
    degrees = np.diff(indptr)  # symmetrised, so in- and out-degrees are the same
    shape = (graph.num_nodes, graph.num_nodes)
    matrix = scipy.sparse.csr_array((np.ones(indices.size, np.float32), indices.view(np.int32), indptr), shape=shape)
    inverse = np.where(degrees, 1.0 / np.maximum(degrees, 1), 0.0).astype(np.float32)
    ranks = np.full(graph.num_nodes, 1.0 / graph.num_nodes, np.float32)
    times = []
    for _ in range(sweeps):
        started = time.perf_counter()
        ranks = DAMPING * (matrix @ (ranks * inverse)) + (1 - DAMPING) / graph.num_nodes
        times.append(time.perf_counter() - started)
    return {"seconds_per_sweep": float(np.median(times))}


def run_dgl(graph: GraphStore, sweeps: int) -> dict[str, Any]:
    """Message passing: copy_u, sum."""
    os.environ["DGLBACKEND"] = "pytorch"
    import dgl
    import torch

    indptr, indices = load_csr(graph)
    csc = (
        "csc",
        (torch.from_numpy(indptr).int(), torch.from_numpy(indices.view(np.int32)), torch.empty(0, dtype=torch.int32)),
    )
    network = dgl.graph(csc, num_nodes=graph.num_nodes, idtype=torch.int32)
    degrees = torch.from_numpy(np.diff(indptr)).clamp(min=1).float()
    ranks = torch.full((graph.num_nodes,), 1.0 / graph.num_nodes)
    times = []
    for _ in range(sweeps):
        started = time.perf_counter()
        network.srcdata["r"] = ranks / degrees
        network.update_all(dgl.function.copy_u("r", "m"), dgl.function.sum("m", "s"))
        ranks = DAMPING * network.dstdata["s"] + (1 - DAMPING) / graph.num_nodes
        times.append(time.perf_counter() - started)
    return {"seconds_per_sweep": float(np.median(times))}


def run_networkit(graph: GraphStore, sweeps: int) -> dict[str, Any]:
    """NetworKit's parallel PageRank, stopped after some sweeps."""
    import networkit

    edge_index = graph.to_edge_index()
    once = edge_index[:, edge_index[0] < edge_index[1]].astype(np.uint64)
    ends = (once[0].copy(), once[1].copy())  # it takes no views
    network = networkit.GraphFromCoo(ends, n=graph.num_nodes, directed=False)
    del edge_index, once, ends
    solver = networkit.centrality.PageRank(network, DAMPING, 0.0)
    solver.maxIterations = sweeps
    started = time.perf_counter()
    solver.run()
    return {"seconds_per_sweep": (time.perf_counter() - started) / solver.numberOfIterations()}


def run_scikit_network(graph: GraphStore, sweeps: int) -> dict[str, Any]:
    """scikit-network's power iteration."""
    import scipy.sparse
    from sknetwork.ranking import PageRank

    indptr, indices = load_csr(graph)
    shape = (graph.num_nodes, graph.num_nodes)
    matrix = scipy.sparse.csr_matrix((np.ones(indices.size, bool), indices.view(np.int32), indptr), shape=shape)

    def solve(count: int) -> float:
        started = time.perf_counter()
        PageRank(DAMPING, solver="piteration", n_iter=count, tol=0).fit(matrix)
        return time.perf_counter() - started

    # A fit also normalises the matrix; what more sweeps add is the sweeps' own time.
    solve(1)
    repeats = 3 if graph.num_edges < LONG_EDGES else 1
    few, many = (float(np.median([solve(count) for _ in range(repeats)])) for count in (1, repeats * sweeps + 1))
    return {"seconds_per_sweep": (many - few) / (repeats * sweeps)}


def run_igraph(graph: GraphStore, sweeps: int) -> dict[str, Any]:
    """Solve with igraph's PRPACK (Gauss-Seidel): whole solution, no sweeps."""
    import igraph

    del sweeps
    edge_index = graph.to_edge_index()
    once = edge_index[:, edge_index[0] < edge_index[1]]
    network = igraph.Graph(n=graph.num_nodes, edges=once.T, directed=False)
    del edge_index, once
    started = time.perf_counter()
    ranks = np.array(network.pagerank(damping=DAMPING, implementation="prpack"))
    return {"seconds_to_solve": time.perf_counter() - started, "total": float(ranks.sum())}


PEERS = {
    "scipy": run_scipy,
    "dgl": run_dgl,
    "networkit": run_networkit,
    "scikit-network": run_scikit_network,
    "igraph": run_igraph,
}


def main() -> None:
    """Run one peer."""
    name, store, sweeps = sys.argv[1:]
    print(json.dumps(PEERS[name](GraphStore.open(Path(store)), int(sweeps))))


if __name__ == "__main__":
    main()
