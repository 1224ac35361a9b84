"""Inference on a products-like graph: ours, partitioned, against DGL on the whole graph and on sampled neighbours.

    python -m bench.inference [--nodes N] [--repeats 3] [--batches 12]

Two layers, features -> 256 -> classes, symmetric normalisation with self loops, the same weights for all. Every
candidate is a process of its own; they take turns. DGL has its graph (int32, self loops and degrees ready) and its
features in memory before the clock starts. Ours start with nothing but an open store and a budget of a quarter of the
peak that DGL had, Python included; their clock covers every read and checksum. The page cache is warm. Neighbour-
sampled inference (fan-outs 10 and 25, batches of 8000) is timed on some of its batches and its time for all nodes is
that of a batch times their number; it takes plain means, as DGL 1.1.3 now and then fails to count the out-degrees of a
sampled block. DGL's whole-graph logits are what ours are compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import DEFAULT_WORK, ecgl, run_measured, save, spread
from ecgl_scale.engine.resources import Resources
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.sbm import LIKE

HIDDEN = 256
FAN_OUTS, BATCH_ROWS = (10, 25), 8000
COMPARE_ROWS = 1 << 16
TOLERANCE = 1e-4
"""Of logits, relative to the largest of their column; DGL adds float32 from end to end, which shows at hubs."""
PEER, OURS, SAMPLED = "dgl_whole_graph", ("ours_dgl", "ours_numba"), "dgl_sampled"
Matrix = NDArray[np.float32]
Timed = Callable[[], tuple[float, Matrix | None]]
"""Returns the seconds for all nodes and, where all nodes were inferred, the logits."""


def run(work: Path, num_nodes: int | None, repeats: int, num_batches: int, memory: int | None = None) -> dict[str, Any]:
    """Build the graph, let all candidates take turns, compare what they found."""
    store = work / "inference.ecgl"
    shutil.rmtree(store, ignore_errors=True)
    run_measured(ecgl("generate", "sbm", str(store), *_size(num_nodes)))
    graph = GraphStore.open(store)
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    peaks: dict[str, int] = dict.fromkeys(CANDIDATES, 0)
    budget = 0
    for round_number in range(repeats):
        names = [PEER, *OURS, SAMPLED]
        # DGL first in the first round, as its peak is the others' budget.
        for name in names[round_number % 4 :] + names[: round_number % 4]:
            command = [
                sys.executable,
                "-m",
                "bench.inference",
                "--child",
                name,
                str(store),
                str(budget),
                str(num_batches),
            ]
            child = run_measured(command)
            seconds[name].append(json.loads(child.stdout.splitlines()[-1])["seconds"])
            peaks[name] = max(peaks[name], child.peak_anon_bytes)
            budget = budget or memory or peaks[PEER] // 4
            print(f"{name}: {seconds[name][-1]:.2f} s, {child.peak_anon_bytes:,} B", flush=True)
    compared = {name: _compare(work, PEER, name) for name in OURS}
    for path in [store, *work.glob("inference-*")]:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    times = {name: spread(values) for name, values in seconds.items()}
    medians = {name: one["median"] for name, one in times.items()}
    return {
        "like": "products",
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "widths": _widths(graph),
        "page_cache": "warm",
        "budget_bytes": budget,
        "seconds": times,
        "sampled": f"{num_batches} batches of {BATCH_ROWS} with fan-outs {FAN_OUTS}, times their number",
        "peak_anon_bytes": peaks,
        "peak_share_of_whole_graph": {name: peaks[name] / peaks[PEER] for name in OURS},
        "time_share_of_whole_graph": {name: medians[name] / medians[PEER] for name in OURS},
        "times_faster_than_sampled": {name: medians[SAMPLED] / medians[name] for name in (PEER, *OURS)},
        "compared_with_whole_graph": compared,
        "all_agree": all(one["largest_relative_error"] < TOLERANCE for one in compared.values()),
    }


def _size(num_nodes: int | None) -> list[str]:
    if num_nodes is None:
        return ["--like", "products"]
    preset = LIKE["products"]
    degree = 2 * preset.num_edges / preset.num_nodes
    counts = {"nodes": num_nodes, "classes": preset.num_classes, "features": preset.num_features}
    shape = {"average-degree": degree, "homophily": preset.homophily}
    return [part for name, value in (counts | shape).items() for part in (f"--{name}", str(value))]


def _widths(graph: GraphStore) -> list[int]:
    return [graph.num_features, HIDDEN, graph.num_classes or 1]


def _layers(graph: GraphStore) -> list[tuple[Matrix, Matrix]]:
    random = np.random.default_rng(0)
    return [
        ((random.normal(size=(b, a)) / np.sqrt(a)).astype(np.float32), random.normal(size=b).astype(np.float32) / 10)
        for a, b in pairwise(_widths(graph))
    ]


def _compare(work: Path, peer: str, name: str) -> dict[str, float]:
    """Block by block: how far the logits are, how many predictions differ, and how sure DGL was of those."""
    theirs, ours = (np.load(_logits_path(work, one), mmap_mode="r") for one in (peer, name))
    scale = np.zeros(theirs.shape[1])
    difference, equal, unsure = np.zeros(theirs.shape[1]), 0, 0.0
    for start in range(0, len(theirs), COMPARE_ROWS):
        a, b = theirs[start : start + COMPARE_ROWS], ours[start : start + COMPARE_ROWS]
        scale = np.maximum(scale, np.abs(a).max(axis=0))
        difference = np.maximum(difference, np.abs(a - b).max(axis=0))
        differs = a.argmax(axis=1) != b.argmax(axis=1)
        equal += int((~differs).sum())
        if differs.any():
            best = np.sort(a[differs], axis=1)[:, -2:]
            unsure = max(unsure, float((best[:, 1] - best[:, 0]).max()))
    return {
        "largest_relative_error": float((difference / scale).max()),
        "equal_predictions": equal / len(theirs),
        "largest_margin_of_other_predictions": unsure,
    }


def _logits_path(work: Path, name: str) -> Path:
    return work / f"inference-{name}.npy"


def _features(graph: GraphStore) -> Matrix:
    x = np.empty((graph.num_nodes, graph.num_features), np.float32)
    for block in graph.features.blocks() if graph.features is not None else []:
        graph.features.read(block, x[block.start : block.stop])  # type: ignore[union-attr, call-arg]
    return x


def _dgl_graph(graph: GraphStore) -> Any:
    """The stored edges and a self loop for every node, as int32 CSC: the least that DGL needs."""
    os.environ["DGLBACKEND"] = "pytorch"
    import dgl
    import torch

    indptr = np.zeros(graph.num_nodes + 1, np.int32)
    indices = np.empty(graph.num_edges + graph.num_nodes, np.int32)
    used = 0
    for block, rows in graph.edges.stream():
        loops = np.arange(block.start, block.stop)
        indices[used : used + rows.values.size + loops.size] = np.insert(rows.values, rows.offsets[1:], loops)
        indptr[block.start + 1 : block.stop + 1] = rows.offsets[1:] + np.arange(1, loops.size + 1) + used
        used += rows.values.size + loops.size
    parts = (torch.from_numpy(indptr), torch.from_numpy(indices), torch.empty(0, dtype=torch.int32))
    whole = dgl.graph(("csc", parts), num_nodes=graph.num_nodes)
    whole.out_degrees()  # what it needs for that is there before the clock starts
    whole.in_degrees()
    return whole


def _dgl_layers(graph: GraphStore, norm: str = "both") -> Any:
    import torch
    from dgl.nn import GraphConv

    found = []
    for weight, bias in _layers(graph):
        layer = GraphConv(weight.shape[1], weight.shape[0], norm=norm, allow_zero_in_degree=True)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight).T)
            layer.bias.copy_(torch.from_numpy(bias))
        found.append(layer)
    return found


def _prepare_whole_graph(graph: GraphStore, budget: int, num_batches: int) -> Timed:
    del budget, num_batches
    import torch

    whole, layers, x = _dgl_graph(graph), _dgl_layers(graph), torch.from_numpy(_features(graph))

    def infer() -> tuple[float, Matrix]:
        started = time.perf_counter()
        with torch.no_grad():
            logits = layers[1](whole, torch.relu(layers[0](whole, x)))
        return time.perf_counter() - started, logits.numpy()

    return infer


def _prepare_sampled(graph: GraphStore, budget: int, num_batches: int) -> Timed:
    del budget
    # int64, as sampling int32 graphs of this size ends DGL 1.1.3 with a segmentation fault.
    whole, layers = _dgl_graph(graph).long(), _dgl_layers(graph, "right")
    import dgl
    import torch

    x = torch.from_numpy(_features(graph))
    sampler = dgl.dataloading.NeighborSampler(list(FAN_OUTS))

    def infer() -> tuple[float, None]:
        total = -(-graph.num_nodes // BATCH_ROWS)
        count = min(num_batches, total)
        done = 0
        started = time.perf_counter()
        with torch.no_grad():
            for first in np.linspace(0, total, count, endpoint=False).astype(int).tolist():
                start, stop = first * BATCH_ROWS, min((first + 1) * BATCH_ROWS, graph.num_nodes)
                inputs, _, blocks = sampler.sample_blocks(whole, torch.arange(start, stop))
                layers[1](blocks[1], torch.relu(layers[0](blocks[0], x[inputs])))
                done += stop - start
        return (time.perf_counter() - started) * graph.num_nodes / done, None

    return infer


def _prepare_ours(backend: Any) -> Callable[[GraphStore, int, int], Timed]:
    def prepare(graph: GraphStore, budget: int, num_batches: int) -> Timed:
        del num_batches
        work = graph.path.parent / f"inference-work-{backend}"
        settings = InferSettings(norm="sym", bias_place="outside", backend=backend, device="cpu")
        if backend != "numba":
            import torch

            torch.zeros(1)
        if backend == "dgl":
            os.environ["DGLBACKEND"] = "pytorch"
            import dgl  # noqa: F401

        def infer() -> tuple[float, Matrix]:
            started = time.perf_counter()
            found = infer_logits(
                graph, _layers(graph), Resources.of(budget or None), settings=settings, work_directory=work
            )
            return time.perf_counter() - started, found.logits

        return infer

    return prepare


CANDIDATES: dict[str, Callable[[GraphStore, int, int], Timed]] = {
    PEER: _prepare_whole_graph,
    "ours_dgl": _prepare_ours("dgl"),
    "ours_numba": _prepare_ours("numba"),
    SAMPLED: _prepare_sampled,
}


def _child(name: str, store: Path, budget: int, num_batches: int) -> None:
    graph = GraphStore.open(store)
    seconds, logits = CANDIDATES[name](graph, budget, num_batches)()
    if logits is not None:
        saved = np.lib.format.open_memmap(_logits_path(store.parent, name), "w+", np.float32, shape=logits.shape)
        saved[:] = logits
    print(json.dumps({"seconds": seconds}))


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, help="a smaller graph of the same shape; without it all 2,449,029 nodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, store, budget, num_batches = arguments.child
        _child(name, Path(store), int(budget), int(num_batches))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("inference", run(arguments.work, arguments.nodes, arguments.repeats, arguments.batches))


if __name__ == "__main__":
    main()
