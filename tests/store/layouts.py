"""Tiny graphs in the exact layouts OGB and DGL publish, with every class present."""

from __future__ import annotations

import gzip
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tiny:
    """What was written, for comparison."""

    folder: Path
    edge_index: np.ndarray[Any, Any]
    features: np.ndarray[Any, Any]
    label: np.ndarray[Any, Any]
    split: np.ndarray[Any, Any]
    year: np.ndarray[Any, Any] | None


def write_csv_gz(path: Path, rows: Any) -> None:
    """Write rows as OGB does: no header, no index, gzip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (",".join(str(value) for value in np.atleast_1d(row)) for row in rows)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))


def zip_folder(folder: Path, target: Path, *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Zip a folder under its own name, as the published zips are, directory entries included."""
    with zipfile.ZipFile(target, "w", method) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            archive.write(path, path.relative_to(folder.parent))
    return target


def _graph(num_nodes: int, num_edges: int, num_classes: int, num_features: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "edge_index": rng.integers(0, num_nodes, (2, num_edges)),
        "features": rng.normal(size=(num_nodes, num_features)).round(6).astype(np.float32),
        "label": np.arange(num_nodes) % num_classes,
        "split": rng.permutation(np.arange(num_nodes) % 3),
        "year": rng.integers(1990, 2020, num_nodes),
    }


def _write_split(folder: Path, split: np.ndarray[Any, Any]) -> None:
    for number, part in enumerate(("train", "valid", "test")):
        write_csv_gz(folder / f"{part}.csv.gz", np.flatnonzero(split == number))


def _write_csv_layout(folder: Path, graph: dict[str, Any], split_name: str) -> None:
    raw = folder / "raw"
    write_csv_gz(raw / "edge.csv.gz", graph["edge_index"].T)
    write_csv_gz(raw / "num-node-list.csv.gz", [len(graph["label"])])
    write_csv_gz(raw / "num-edge-list.csv.gz", [graph["edge_index"].shape[1]])
    write_csv_gz(raw / "node-feat.csv.gz", graph["features"])
    write_csv_gz(raw / "node-label.csv.gz", graph["label"])
    if graph["year"] is not None:
        write_csv_gz(raw / "node_year.csv.gz", graph["year"])
    _write_split(folder / "split" / split_name, graph["split"])
    (folder / "mapping").mkdir()
    (folder / "mapping" / "README.md").write_text("ids\n")
    (folder / "RELEASE_v1.txt").write_text("")


def write_arxiv(parent: Path, *, folder: str = "arxiv") -> Tiny:
    """ogbn-arxiv: csv.gz, 40 classes, years, split by time."""
    graph = _graph(60, 300, 40, 8, seed=1)
    _write_csv_layout(parent / folder, graph, "time")
    return Tiny(parent / folder, **graph)


def write_products(parent: Path, *, folder: str = "products") -> Tiny:
    """ogbn-products: csv.gz, 47 classes, one row for the two directions of an edge."""
    graph = _graph(70, 200, 47, 5, seed=2) | {"year": None}
    _write_csv_layout(parent / folder, graph, "sales_ranking")
    return Tiny(parent / folder, **graph)


def write_papers(parent: Path, *, fortran: bool = False, compressed: bool = False) -> Tiny:
    """ogbn-papers100M: data.npz and node-label.npz (float32, NaN where there is no label), 172 classes."""
    graph = _graph(260, 900, 172, 6, seed=3)
    graph["label"] = np.where(np.arange(260) < 200, graph["label"], -1)
    graph["split"] = np.where(graph["label"] >= 0, graph["split"], -1)
    folder = parent / "papers100M-bin"
    (folder / "raw").mkdir(parents=True)
    save = np.savez_compressed if compressed else np.savez
    edge_index = graph["edge_index"]
    save(
        folder / "raw" / "data.npz",
        edge_index=np.asfortranarray(edge_index) if fortran else edge_index,
        node_feat=graph["features"],
        node_year=graph["year"].reshape(-1, 1),
        num_nodes_list=np.array([260]),
        num_edges_list=np.array([edge_index.shape[1]]),
    )
    label = np.where(graph["label"] >= 0, graph["label"], np.nan).astype(np.float32).reshape(-1, 1)
    save(folder / "raw" / "node-label.npz", node_label=label)
    _write_split(folder / "split" / "time", graph["split"])
    return Tiny(folder, **graph)


def write_cora(folder: Path, **replaced: Any) -> Path:
    """cora_full.npz: two CSR matrices, labels, and names pickled as object arrays."""
    from scipy import sparse

    rng = np.random.default_rng(4)
    num_nodes = 90
    dense = rng.random((num_nodes, num_nodes)) < 0.05
    dense[3, 3] = dense[10, 11] = dense[11, 10] = True
    # DGL takes the node count from the largest id that has an edge.
    dense[0, num_nodes - 1] = True
    adjacency = sparse.csr_matrix(dense.astype(np.float32))
    attributes = sparse.random(num_nodes, 30, density=0.1, format="csr", dtype=np.float32, random_state=5)
    parts: dict[str, Any] = {
        "adj_data": adjacency.data,
        "adj_indices": adjacency.indices,
        "adj_indptr": adjacency.indptr,
        "adj_shape": np.array(adjacency.shape),
        "attr_data": attributes.data,
        "attr_indices": attributes.indices,
        "attr_indptr": attributes.indptr,
        "attr_shape": np.array(attributes.shape),
        "labels": np.arange(num_nodes) % 70,
        "node_names": np.array([f"paper {index}" for index in range(num_nodes)], dtype=object),
        "idx_to_class": np.array({0: "first class"}, dtype=object),
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "cora_full.npz", **(parts | replaced))
    return folder / "cora_full.npz"


def write_reddit(folder: Path) -> Tiny:
    """reddit_data.npz and reddit_graph.npz (scipy's COO), 41 classes, float64 features."""
    from scipy import sparse

    graph = _graph(55, 400, 41, 7, seed=6) | {"year": None}
    folder.mkdir(parents=True, exist_ok=True)
    src, dst = graph["edge_index"]
    matrix = sparse.coo_matrix((np.ones(src.size, np.int64), (src, dst)), shape=(55, 55))
    sparse.save_npz(folder / "reddit_graph.npz", matrix)
    np.savez(
        folder / "reddit_data.npz",
        feature=graph["features"].astype(np.float64),
        node_types=graph["split"] + 1,
        label=graph["label"],
        node_ids=np.arange(55) + 1000,
    )
    return Tiny(folder, **graph)
