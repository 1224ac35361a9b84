"""Diversity of a Kronecker graph: ours in memory and streamed from Zarr against DGL and torch, in the same run.

    python -m bench.diversity [--scale 22] [--features 100] [--repeats 2]

Every candidate is a process of its own that scores all nodes by |x_i - mean of in-neighbours|; they take turns. Edges
and features of the peers, and of ours "in memory", are there before the clock starts. "streamed" starts with nothing
but an open store and a budget of a quarter of the feature bytes for the whole process, Python included; its clock
covers every read and checksum. The page cache is warm. Scores are compared with float64 sums at sampled nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save, spread
from ecgl_scale.engine.resources import Resources
from ecgl_scale.rank.diversity import rank_diversity
from ecgl_scale.store.graph import GraphStore

NUM_SAMPLES = 2000
TOLERANCE = 1e-4
"""Relative; the peers add float32 from end to end, which shows at hubs."""
PEERS = ("dgl", "torch_csr")
Scores = NDArray[np.floating[Any]]


def run(work: Path, scale: int, num_features: int, repeats: int, memory: int | None = None) -> dict[str, Any]:
    """Build the graph, let all candidates take turns, compare what they found."""
    store = work / "diversity.ecgl"
    shutil.rmtree(store, ignore_errors=True)
    kron = ("generate", "kron", str(store), "--scale", str(scale), "--features", str(num_features))
    run_measured(ecgl(*kron, "--features-as", "dense"))
    graph = GraphStore.open(store)
    feature_bytes = graph.num_nodes * num_features * 4
    budget = memory or feature_bytes // 4
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    peaks: dict[str, int] = dict.fromkeys(CANDIDATES, 0)
    errors: dict[str, float] = {}
    passes: dict[str, int] = {}
    wanted = _exact(graph)
    for round_number in range(repeats):
        names = list(CANDIDATES)
        for name in names[round_number % 4 :] + names[: round_number % 4]:
            child = run_measured([sys.executable, "-m", "bench.diversity", "--child", name, str(store), str(budget)])
            said = json.loads(child.stdout.splitlines()[-1])
            seconds[name].append(said["seconds"])
            peaks[name] = max(peaks[name], child.peak_anon_bytes)
            passes[name] = said["passes"]
            errors[name] = float(np.max(np.abs(np.array(said["scores"]) - wanted) / np.maximum(wanted, 1e-3)))
            print(f"{name}: {said['seconds']:.2f} s, error {errors[name]:.1e}, {child.peak_anon_bytes:,} B", flush=True)
    shutil.rmtree(store, ignore_errors=True)
    medians = {name: spread(values) for name, values in seconds.items()}
    return {
        "scale": scale,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": num_features,
        "feature_bytes": feature_bytes,
        "page_cache": "warm",
        "seconds": medians,
        "peak_anon_bytes": peaks,
        "passes": passes,
        "streamed_budget_bytes": budget,
        "streamed_peak_share_of_features": peaks["streamed"] / feature_bytes,
        "times_faster_than": {
            ours: {peer: medians[peer]["median"] / medians[ours]["median"] for peer in PEERS}
            for ours in ("in_memory", "streamed")
        },
        "largest_relative_error": errors,
        "all_agree": max(errors.values()) < TOLERANCE,
    }


def _samples(num_nodes: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, num_nodes, NUM_SAMPLES)


def _exact(graph: GraphStore) -> NDArray[np.float64]:
    """float64 sums over the stored rows."""
    x = _features(graph)
    wanted = []
    for node in _samples(graph.num_nodes).tolist():
        near = x[graph.edges.in_neighbours(node)].astype(np.float64)
        mean = near.mean(axis=0) if near.size else 0.0
        wanted.append(float(np.linalg.norm(x[node].astype(np.float64) - mean)))
    return np.array(wanted)


def _features(graph: GraphStore) -> NDArray[np.float32]:
    assert graph.features is not None
    x = np.empty((graph.num_nodes, graph.num_features), np.float32)
    for block, rows in graph.features.stream():
        x[block.start : block.stop] = rows
    return x


def _csr(graph: GraphStore) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    indptr, indices = np.zeros(graph.num_nodes + 1, np.int32), np.empty(graph.num_edges, np.int32)
    used = 0
    for block, rows in graph.edges.stream():
        indptr[block.start + 1 : block.stop + 1] = rows.offsets[1:] + used
        indices[used : used + rows.values.size] = rows.values
        used += rows.values.size
    return indptr, indices


Prepared = Callable[[], tuple[Scores, int]]


def _prepare_in_memory(graph: GraphStore, budget: int) -> Prepared:
    del budget
    x = _features(graph)
    for _, rows in graph.edges.stream():  # checked and in the page cache, as the peers' edges are
        rows.values.max(initial=0)
    rank_diversity(graph, Resources.of(), features=x[:, :4].copy())  # compiled kernels are loaded, not built

    def score() -> tuple[Scores, int]:
        found = rank_diversity(graph, Resources.of(), features=x)
        return found.scores, found.passes

    return score


def _prepare_streamed(graph: GraphStore, budget: int) -> Prepared:
    def score() -> tuple[Scores, int]:
        found = rank_diversity(graph, Resources.of(budget))
        return found.scores, found.passes

    return score


def _prepare_dgl(graph: GraphStore, budget: int) -> Prepared:
    del budget
    os.environ["DGLBACKEND"] = "pytorch"
    import dgl
    import torch

    indptr, indices = (torch.from_numpy(part) for part in _csr(graph))
    peer = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int32))), num_nodes=graph.num_nodes)
    x = torch.from_numpy(_features(graph))
    peer.ndata["x"] = x

    def score() -> tuple[Scores, int]:
        peer.update_all(dgl.function.copy_u("x", "m"), dgl.function.mean("m", "mean"))
        return torch.linalg.vector_norm(x - peer.ndata["mean"], dim=1).numpy(), 1

    return score


def _prepare_torch(graph: GraphStore, budget: int) -> Prepared:
    del budget
    import torch

    indptr, indices = (torch.from_numpy(part) for part in _csr(graph))
    degrees = torch.diff(indptr).clamp(min=1).to(torch.float32)[:, None]
    shape = (graph.num_nodes, graph.num_nodes)
    adjacency = torch.sparse_csr_tensor(indptr, indices, torch.ones(indices.numel()), shape, check_invariants=False)
    x = torch.from_numpy(_features(graph))

    def score() -> tuple[Scores, int]:
        return torch.linalg.vector_norm(x - adjacency @ x / degrees, dim=1).numpy(), 1

    return score


CANDIDATES: dict[str, Callable[[GraphStore, int], Prepared]] = {
    "in_memory": _prepare_in_memory,
    "streamed": _prepare_streamed,
    "dgl": _prepare_dgl,
    "torch_csr": _prepare_torch,
}


def _child(name: str, store: Path, budget: int) -> None:
    graph = GraphStore.open(store)
    score = CANDIDATES[name](graph, budget)
    started = time.perf_counter()
    scores, passes = score()
    seconds = time.perf_counter() - started
    sampled = scores[_samples(graph.num_nodes)].astype(float).tolist()
    print(json.dumps({"seconds": seconds, "passes": passes, "scores": sampled}))


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, store, budget = arguments.child
        _child(name, Path(store), int(budget))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("diversity", run(arguments.work, arguments.scale, arguments.features, arguments.repeats))


if __name__ == "__main__":
    main()
