"""What a process holds before work begins, and what extracting task graphs reads: this code against the one before it.

``python -m bench.footprint [--nodes 32000000] [--before DIR] [--edges-nodes 1000000] [--work DIR]``

footprint   a store of so many nodes with labels, few edges and no features; a process imports what a run needs, opens
            the store and draws its five tasks, and says what it holds (RssAnon + RssShmem). ``--before`` is another
            checkout of this project, of which the same is measured.
extract     five tasks of a block model with 64 float16 features, and of random edges with bags of words: one by one,
            each as if the store did not fit the page cache (it is dropped before each), and in one pass. Bytes are
            those that the process had read from the disk (``read_bytes`` of /proc/self/io), so root is needed; without
            it they are left out.
rows        of dense features the rows of one task gathered from the store, and read from the task graph's copy, both
            cold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import DEFAULT_WORK, drop_page_cache, save

NUM_CLASSES, CLASSES_PER_TASK = 20, 4

NUM_WORDS, WORDS_A_NODE, DEGREE = 2000, 20, 30

HOLD = """
import json, sys
from ecgl_scale.base.memory import give_back_freed, own_memory_bytes
import ecgl_scale.session.run
imported = own_memory_bytes()
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
stream = TaskStream.class_incremental(GraphStore.open(sys.argv[1]), classes_per_task=int(sys.argv[2]))
give_back_freed()
print(json.dumps({"imported_bytes": imported, "held_bytes": own_memory_bytes(), "split_hash": stream.split_hash}))
"""


def footprint(work: Path, num_nodes: int, before: Path | None) -> dict[str, Any]:
    """Bytes that a process holds, by this code and by another checkout."""
    from ecgl_scale.store.graph import GraphStore

    store = work / "labels.ecgl"
    random = np.random.default_rng(0)
    edges = random.integers(0, num_nodes, (2, num_nodes // 100))
    labels = random.integers(0, NUM_CLASSES, num_nodes).astype(np.int32)
    GraphStore.from_edge_index(edges, None, labels, store, num_nodes=num_nodes)
    here = Path(__file__).resolve().parents[1]
    found: dict[str, Any] = {"num_nodes": num_nodes, "num_tasks": NUM_CLASSES // CLASSES_PER_TASK}
    for name, root in {"now": here, **({} if before is None else {"before": before})}.items():
        environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'kernels'}"}
        command = [sys.executable, "-c", HOLD, str(store), str(CLASSES_PER_TASK)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=root).stdout
        found[name] = json.loads(out)
    if before is not None:
        found["same_split"] = found["now"]["split_hash"] == found["before"]["split_hash"]
        found["ratio"] = found["now"]["held_bytes"] / found["before"]["held_bytes"]
    return found


def make_dense(store: Path, num_nodes: int) -> None:
    """A block model with 64 float16 features."""
    size = ["--nodes", str(num_nodes), "--classes", str(NUM_CLASSES), "--features", "64", "--feature-dtype", "float16"]
    command = [sys.executable, "-m", "ecgl_scale.cli.main", "--quiet", "generate", "sbm", str(store), *size]
    subprocess.run([*command, "--average-degree", str(DEGREE)], check=True)


def make_sparse(store: Path, num_nodes: int) -> None:
    """Random edges, and a few words a node."""
    from scipy.sparse import csr_matrix

    from ecgl_scale.store.graph import GraphStore

    random = np.random.default_rng(0)
    edges = random.integers(0, num_nodes, (2, DEGREE * num_nodes))
    labels = random.integers(0, NUM_CLASSES, num_nodes).astype(np.int32)
    # A word from each of as many equal ranges: columns ascend and none is there twice.
    ranges = np.arange(WORDS_A_NODE) * (NUM_WORDS // WORDS_A_NODE)
    words = (ranges + random.integers(0, NUM_WORDS // WORDS_A_NODE, (num_nodes, WORDS_A_NODE))).ravel()
    values, ends = np.ones(words.size, np.float32), np.arange(num_nodes + 1) * WORDS_A_NODE
    features = csr_matrix((values, words, ends), shape=(num_nodes, NUM_WORDS))
    GraphStore.from_edge_index(edges, features, labels, store)


def extract(work: Path, num_nodes: int, make: Callable[[Path, int], None]) -> dict[str, Any]:
    """Bytes read and seconds: a pass for each task, and one for all."""
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.store.graph import GraphStore
    from ecgl_scale.tasks.graphs import TaskGraphs
    from ecgl_scale.tasks.stream import TaskStream

    store = work / "blocks.ecgl"
    make(store, num_nodes)
    graph = GraphStore.open(store)
    stream = TaskStream.class_incremental(graph, classes_per_task=CLASSES_PER_TASK)
    edge_bytes = sum(graph.edges.file_bytes(block) for block in graph.edges.blocks())
    needed = edge_bytes + graph.require_features().stored_bytes
    found: dict[str, Any] = {
        "num_nodes": num_nodes,
        "num_edges": graph.num_edges,
        "num_tasks": len(stream),
        "edge_and_feature_bytes": needed,
        "store_bytes": graph.manifest.total_bytes,
    }
    for name in ("one_by_one", "one_pass"):
        graphs = TaskGraphs(graph, stream, work / name, Resources.of("2GiB", work=work / "engine"))
        read, seconds, is_cold = 0, 0.0, True
        for tasks in [list(stream)] if name == "one_pass" else [[task] for task in stream]:
            is_cold &= drop_page_cache()
            before, started = _read_bytes(), time.perf_counter()
            graphs.prepare(tasks)
            for task in tasks:
                graphs.own(task)
            read, seconds = read + _read_bytes() - before, seconds + time.perf_counter() - started
        found[name] = {"seconds": seconds, "read_bytes": read if is_cold else None}
        if is_cold:
            found[name]["read_of_store"] = read / graph.manifest.total_bytes
    if not graph.has_sparse_features:
        found["rows"] = _rows(graph, TaskGraphs(graph, stream, work / "one_pass", Resources.of("2GiB")), stream)
    return found


def _rows(graph: Any, graphs: Any, stream: Any) -> dict[str, Any]:
    ids, copy = stream[0].node_ids, graphs.own(stream[0]).require_features()
    found = {}
    ways = {
        "gathered": lambda part: graph.require_features().rows_dense(ids[part]),
        "copied": lambda part: copy.rows_dense(np.arange(ids.size)[part]),
    }
    for name, read in ways.items():
        is_cold = drop_page_cache()
        before, started = _read_bytes(), time.perf_counter()
        for start in range(0, ids.size, 1 << 16):
            read(slice(start, start + (1 << 16)))
        read_bytes = _read_bytes() - before if is_cold else None
        found[name] = {"seconds": time.perf_counter() - started, "read_bytes": read_bytes}
    return {**found, "ratio": found["gathered"]["seconds"] / found["copied"]["seconds"]}


def _read_bytes() -> int:
    """Bytes that this process has had read from the disk."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=32_000_000)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--edges-nodes", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    work = arguments.work / "footprint"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        held = footprint(work, arguments.nodes, arguments.before)
        parts = {}
        for name, make in {"extract": make_dense, "extract_sparse": make_sparse}.items():
            (own := work / name).mkdir()
            parts[name] = extract(own, arguments.edges_nodes, make)
            shutil.rmtree(own)
        save("footprint", {"footprint": held, **parts})
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
