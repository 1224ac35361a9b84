"""One graph, three builders: our store on disk against scipy's and DGL's CSR in memory, in the same run.

    python -m bench.build_peers [--scale 22] [--repeats 3] [--memory 4GiB]

All start from the same raw pairs in memory (uint32 for us, the int32 that scipy and DGL want for them) and must store
both directions. Ours ends with a durable store: sorted rows without duplicates and loops, tiles, checksums, fsynced.
scipy's ends with sorted rows whose duplicates are summed; DGL's with unsorted rows and all duplicates, in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import DEFAULT_WORK, save, spread
from ecgl_scale.engine.resources import Resources
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.kron import kron_source


def run(work: Path, scale: int, memory: str, repeats: int) -> dict[str, Any]:
    """Time the three builders in turn, as often as asked; the order rotates with the round."""
    pairs = _kron_pairs(scale)
    num_nodes = 1 << scale
    builders: dict[str, Callable[[], int]] = {
        "ecgl_scale": lambda: _build_ours(pairs, num_nodes, work / "peer.ecgl", memory),
        "scipy": lambda: _build_scipy(pairs.view(np.int32), num_nodes),
        "dgl": lambda: _build_dgl(pairs.view(np.int32), num_nodes),
    }
    _build_ours(pairs[:, :1000], num_nodes, work / "warm-up.ecgl", memory)  # compiled kernels are loaded, not built
    _build_dgl(pairs[:, :1000].view(np.int32), num_nodes)
    seconds: dict[str, list[float]] = {name: [] for name in builders}
    entries: dict[str, int] = {}
    for round_number in range(repeats):
        names = list(builders)
        for name in names[round_number % 3 :] + names[: round_number % 3]:
            started = time.perf_counter()
            entries[name] = builders[name]()
            seconds[name].append(time.perf_counter() - started)
            print(f"{name}: {seconds[name][-1]:.2f} s, {entries[name]:,} entries", flush=True)
    medians = {name: spread(values) for name, values in seconds.items()}
    ours = medians["ecgl_scale"]["median"]
    return {
        "scale": scale,
        "raw_pairs": pairs.shape[1],
        "memory": memory,
        "entries": entries,
        "seconds": medians,
        "times_faster_than": {name: medians[name]["median"] / ours for name in ("scipy", "dgl")},
    }


def _kron_pairs(scale: int) -> NDArray[np.uint32]:
    source = kron_source(scale=scale)
    pairs = np.empty((2, source.num_edges_hint), np.uint32)
    position = 0
    for block in source.edges.stream(1 << 22):
        pairs[0, position : position + block.src.size] = block.src
        pairs[1, position : position + block.dst.size] = block.dst
        position += block.src.size
    return pairs


def _build_ours(pairs: NDArray[np.uint32], num_nodes: int, store: Path, memory: str) -> int:
    shutil.rmtree(store, ignore_errors=True)
    # The pairs are the caller's; the budget is for the build on top of them.
    budget = memory_with(pairs.nbytes, memory)
    manifest = build_store(
        array_source(pairs, num_nodes=num_nodes), store, Resources.of(budget), options=BuildOptions(symmetrise=True)
    )
    return manifest.edges.num_edges


def memory_with(held_bytes: int, memory: str) -> int:
    """The budget of the build, plus what the benchmark itself holds."""
    from ecgl_scale.units import parse_bytes

    return parse_bytes(memory) + held_bytes


def _build_scipy(pairs: NDArray[np.int32], num_nodes: int) -> int:
    import scipy.sparse

    rows, columns = np.concatenate([pairs[1], pairs[0]]), np.concatenate([pairs[0], pairs[1]])
    values = np.ones(rows.size, np.uint8)
    matrix = scipy.sparse.coo_array((values, (rows, columns)), shape=(num_nodes, num_nodes)).tocsr()
    return int(matrix.nnz)


def _build_dgl(pairs: NDArray[np.int32], num_nodes: int) -> int:
    os.environ["DGLBACKEND"] = "pytorch"
    import dgl
    import torch

    source, target = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
    both = torch.cat([source, target]), torch.cat([target, source])
    graph = dgl.graph(both, num_nodes=num_nodes, idtype=torch.int32).formats("csc")
    graph.create_formats_()
    return int(graph.adj_tensors("csc")[1].shape[0])


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    save("build_peers", run(arguments.work, arguments.scale, arguments.memory, arguments.repeats))
    shutil.rmtree(arguments.work / "peer.ecgl", ignore_errors=True)
    shutil.rmtree(arguments.work / "warm-up.ecgl", ignore_errors=True)


if __name__ == "__main__":
    main()
