"""The cases of ``bench.quick``: at which size, which numbers the table has, and what a stage has to move at least."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
LINE_BYTES = 64
NUM_HIDDEN, NUM_CLASSES = 256, 47
"""Of ``bench.epoch``: the widths of a products-sized model."""


@dataclass(frozen=True)
class Limit:
    """What a stage has to move at least, and by which rate of ``bandwidth``."""

    rate: str
    amount: Callable[[Json], float]


@dataclass(frozen=True)
class Figure:
    """A number of a case's record: where its seconds are, where those of peers are, and the limit."""

    what: str
    seconds: str
    peers: Mapping[str, str] = field(default_factory=dict)
    limit: Limit | None = None


@dataclass(frozen=True)
class Case:
    """A case of ``bench`` at a small size."""

    arguments: str
    figures: tuple[Figure, ...]


def _line_bytes(width: int) -> int:
    """Bytes of the cache lines that a row of so many float32 takes."""
    return -(-4 * width // LINE_BYTES) * LINE_BYTES


def _sweep_bytes(found: Json) -> float:
    """Four bytes an edge, and four vectors of 4 bytes a node."""
    row = found["rows"][1]
    return float(4 * row["num_edges"] + 16 * row["num_nodes"])


def _attribute_operations(found: Json) -> float:
    return float(2 * found["num_rows"] * found["num_features"] ** 2)


def _gathered_bytes(found: Json) -> float:
    """A row of features an edge."""
    return float(found["num_edges"] * _line_bytes(found["num_features"]))


def _inferred_bytes(found: Json) -> float:
    """A row of features an edge, and then a row of outputs."""
    return float(found["num_edges"] * (_line_bytes(found["widths"][0]) + _line_bytes(found["widths"][-1])))


def _epoch_operations(found: Json) -> float:
    """Two products forward, and the three of the way back."""
    row = found["rows"]["200000"]
    num_features = row["row_bytes"] / row["num_rows"] / 4
    return float(2 * row["num_rows"] * NUM_HIDDEN * (2 * num_features + 3 * NUM_CLASSES))


CASES: dict[str, Case] = {
    "build_scale": Case(
        "--scales 20 22 --repeats 2",
        (
            Figure(
                "build, scale 22",
                "rows.1.build_seconds",
                limit=Limit("write", lambda found: found["rows"][1]["written_bytes"]),
            ),
            Figure(
                "verify, scale 22",
                "rows.1.verify_seconds",
                limit=Limit("page_cache", lambda found: found["rows"][1]["store_bytes"]),
            ),
        ),
    ),
    "build_peers": Case(
        "--scale 20 --repeats 3",
        (
            Figure(
                "build of raw pairs, scale 20",
                "seconds.ecgl_scale",
                {"DGL": "seconds.dgl", "scipy": "seconds.scipy"},
            ),
        ),
    ),
    "feature_read": Case(
        "--bytes 1GiB --repeats 3",
        (
            Figure(
                "features read and checked, warm",
                "warm.stream.median_seconds",
                {"plain read": "warm.plain.median_seconds"},
                Limit("page_cache", lambda found: found["bytes"]),
            ),
            Figure(
                "features read and checked, cold",
                "cold.stream.median_seconds",
                {"plain read": "cold.plain.median_seconds"},
                Limit("disk", lambda found: found["bytes"]),
            ),
        ),
    ),
    "pagerank": Case(
        "--scales 20 22 --peer-scales 22 --sweeps 5 --repeats 3",
        (
            Figure(
                "sweep, scale 22, warm",
                "rows.1.warm.seconds_per_sweep",
                {
                    "natural order": "rows.1.warm_natural.seconds_per_sweep",
                    "DGL": "rows.1.peers.dgl.seconds_per_sweep",
                    "scipy": "rows.1.peers.scipy.seconds_per_sweep",
                },
                Limit("memory", _sweep_bytes),
            ),
            Figure(
                "sweep, scale 22, cold",
                "rows.1.cold.seconds_per_sweep",
                limit=Limit("disk", lambda found: found["rows"][1]["cold"]["read_bytes_per_sweep"]),
            ),
        ),
    ),
    "attribute": Case(
        "--rows 1000000 --repeats 5",
        (
            Figure(
                "attribute sums, 1 M rows of 100",
                "seconds.store_accumulate",
                limit=Limit("product", _attribute_operations),
            ),
            Figure(
                "attribute values of the same",
                "seconds.store_evaluate",
                limit=Limit("product", _attribute_operations),
            ),
        ),
    ),
    "diversity": Case(
        "--scale 20 --repeats 3",
        (
            Figure(
                "diversity, scale 20, in memory",
                "seconds.in_memory",
                {"DGL": "seconds.dgl"},
                Limit("lines", _gathered_bytes),
            ),
            Figure(
                "diversity, scale 20, streamed",
                "seconds.streamed",
                {"DGL in memory": "seconds.dgl"},
                Limit("lines", _gathered_bytes),
            ),
        ),
    ),
    "epoch": Case(
        "--rows 200000 --graphs arxiv --epochs 4 --repeats 2",
        (
            Figure(
                "epoch of 200,000 rows on disk",
                "rows.200000.candidates.disk.seconds",
                {"torch in memory": "rows.200000.candidates.torch.seconds"},
                Limit("product", _epoch_operations),
            ),
            Figure(
                "epoch of an arxiv-like graph, as MLP",
                "graphs.arxiv.candidates.mlp.seconds",
                {"DGL's GCN": "graphs.arxiv.candidates.dgl_gcn.seconds"},
            ),
        ),
    ),
    "inference": Case(
        "--nodes 400000 --repeats 2 --batches 4",
        (
            Figure(
                "inference of 400,000 nodes",
                "seconds.ours_numba",
                {"DGL, whole graph": "seconds.dgl_whole_graph", "DGL, sampled": "seconds.dgl_sampled"},
                Limit("lines", _inferred_bytes),
            ),
        ),
    ),
    "cluster": Case(
        "--scales 22 --sweeps 5 --repeats 3 --network-scales",
        (
            Figure(
                "sweep by two workers, scale 22",
                "rows.0.warm.seconds_per_sweep.workers",
                {"two threads": "rows.0.warm.seconds_per_sweep.threads"},
            ),
        ),
    ),
    "ranks": Case(
        "--rows 100000 --epochs 8 --repeats 2",
        (
            Figure(
                "epoch by two ranks",
                "cases.narrow.seconds.2 ranks, 1 thread each",
                {"two threads": "cases.narrow.seconds.one process, 2 threads"},
            ),
        ),
    ),
    "footprint": Case(
        "--nodes 8000000 --edges-nodes 400000",
        (
            Figure(
                "five task graphs in one pass",
                "extract.one_pass.seconds",
                {"one by one": "extract.one_by_one.seconds"},
            ),
        ),
    ),
}
"""In the order of a job; each takes one to three minutes on two cores."""
