"""CoraFull and Reddit in the files DGL publishes, without DGL and without unpickling.

Node ids are those of the files; DGL's loaders renumber nodes afterwards (reverse Cuthill-McKee), so its graphs are the
same up to that renumbering. Reddit is streamed; CoraFull's adjacency, half a MiB, is held and turned into what
``dgl.to_bidirected`` makes of it: every edge and its reverse, once each. Self loops stay for the builder to decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import (
    AnyArray,
    ColumnSource,
    CsrBlock,
    DenseSource,
    GraphSource,
    SparseSource,
)
from ecgl_scale.store.sources.archive import PublishedFiles, open_archive
from ecgl_scale.store.sources.arrays import ArrayEdges
from ecgl_scale.store.sources.download import download
from ecgl_scale.store.sources.npy import NpzFile
from ecgl_scale.store.sources.npy_edges import npy_edges
from ecgl_scale.store.sources.npz_in_zip import open_published_npz
from ecgl_scale.store.sources.ogb_binary import binary_column
from ecgl_scale.units import GIB, MIB

MAX_ADJACENCY_BYTES = 8 * MIB
"""For each array of a held adjacency: 16 times CoraFull's."""

CORA_FILE = "cora_full.npz"
REDDIT_NODES = "reddit_data.npz"
REDDIT_EDGES = ("reddit_graph.npz", "reddit_self_loop_graph.npz")


@dataclass(frozen=True)
class _Published:
    """What DGL's own loader knows of a dataset."""

    name: str
    url: str
    files: tuple[str, ...]
    num_classes: int
    max_download_bytes: int


DATASETS = {
    "corafull": _Published("corafull", "https://data.dgl.ai/dataset/cora_full.zip", (CORA_FILE,), 70, GIB),
    "reddit": _Published(
        "reddit", "https://data.dgl.ai/dataset/reddit.zip", (REDDIT_NODES, REDDIT_EDGES[0]), 41, 8 * GIB
    ),
}
_LAYOUT = f"{CORA_FILE}, or {REDDIT_NODES} and {REDDIT_EDGES[0]}"


def open_dgl(name_or_path: str, *, cache: Path, on_event: EventSink = ignore_events, adds: bool = False) -> GraphSource:
    """Open CoraFull or Reddit.

    Parameters
    ----------
    name_or_path
        ``corafull`` or ``reddit`` (looked for in ``cache``, else downloaded there), one of the files, a folder that
        holds them, or DGL's zip.
    cache
        Where downloads go, and deflated .npz files of a zip.
    adds
        The nodes come to a graph that is there: labels and features are of the new ones, the matrix is of all.

    Returns
    -------
    GraphSource
        CoraFull: both directions of every edge, no duplicates, sparse features, column ``label``. Reddit: the edges
        of the file (it holds both directions), dense float32 features, columns ``label`` and ``split``.
    """
    files, first_file = _locate(name_or_path, cache, on_event)
    if first_file == REDDIT_NODES:
        return _open_reddit(files, cache, adds=adds)
    return _open_cora(open_published_npz(files, first_file, cache=cache, skip_objects=True), first_file, adds=adds)


def _locate(name_or_path: str, cache: Path, on_event: EventSink) -> tuple[PublishedFiles, str]:
    """The folder, and the file in it that tells which dataset it is."""
    path = Path(name_or_path)
    if path.is_dir():
        return _only_dataset([PublishedFiles(path)], path)
    if path.is_file() and path.suffix == ".zip":
        archive = open_archive(path)
        prefixes = sorted({member.rpartition("/")[0] for member in archive.members})
        return _only_dataset(
            [PublishedFiles(path, f"{prefix}/" if prefix else "", archive) for prefix in prefixes], path
        )
    if path.is_file():
        is_reddit = path.name == REDDIT_NODES or path.name in REDDIT_EDGES
        return PublishedFiles(path.parent), REDDIT_NODES if is_reddit else path.name
    dataset = DATASETS.get(name_or_path.lower().replace("_", ""))
    if dataset is None:
        raise InvalidInputError(
            f"{name_or_path!r} is neither a dataset we know nor a path",
            expected=f"one of {', '.join(DATASETS)}, or a file, folder or zip with {_LAYOUT}",
        )
    for folder in (cache, cache / dataset.name, cache / Path(dataset.url).stem):
        files = PublishedFiles(folder)
        if all(files.has(name) for name in dataset.files):
            return files, dataset.files[0]
    target = cache / Path(dataset.url).name
    fetched = download(dataset.url, target, max_bytes=dataset.max_download_bytes, on_event=on_event)
    return _locate(str(fetched), cache, on_event)


def _only_dataset(candidates: list[PublishedFiles], path: Path) -> tuple[PublishedFiles, str]:
    found = [(files, name) for files in candidates for name in (CORA_FILE, REDDIT_NODES) if files.has(name)]
    if len(found) != 1:
        raise InvalidInputError(
            "there are several datasets here" if found else "no dataset of DGL is here",
            where=path,
            expected=_LAYOUT,
            fix="give the .npz file itself" if found else None,
        )
    return found[0]


def _open_cora(arrays: NpzFile, file_name: str, *, adds: bool) -> GraphSource:
    num_all = _square(arrays, "adj_shape")
    num_nodes = arrays.header("labels").size if adds else num_all
    edges = _both_directions(arrays, num_all)
    known = file_name == CORA_FILE
    name = "corafull" if known else Path(file_name).stem
    return GraphSource(
        name=name,
        num_nodes=num_nodes,
        num_edges_hint=edges.shape[1],
        edges=ArrayEdges(edges[0], edges[1], arrays.where("adj_indices")),
        features=_sparse_features(arrays, num_nodes) if "attr_data" in arrays.members else None,
        columns=(binary_column(arrays, "labels", column="label", num_nodes=num_nodes),),
        num_classes=DATASETS["corafull"].num_classes if known else None,
        provenance={"source": "dgl", "name": name, "edges": "both directions, as dgl.to_bidirected"},
    )


def _square(arrays: NpzFile, name: str) -> int:
    shape = arrays.load(name, 64).reshape(-1)
    if shape.size != 2 or shape.dtype.kind not in "iu" or shape[0] != shape[1] or shape[0] < 0:
        raise InvalidInputError(f"{name} is {shape.tolist()}", where=arrays.where(name), expected="two equal counts")
    return int(shape[0])


def _load_indptr(arrays: NpzFile, name: str, *, num_rows: int, num_values: int) -> NDArray[np.int64]:
    """A sparse matrix's row offsets, checked."""
    raw = arrays.load(name, MAX_ADJACENCY_BYTES)
    indptr = raw.astype(np.int64) if raw.dtype.kind in "iu" else np.empty(0, np.int64)
    steps = np.diff(indptr)
    if indptr.shape != (num_rows + 1,) or indptr[0] != 0 or indptr[-1] != num_values or (steps < 0).any():
        raise InvalidInputError(
            f"{name} are not the row offsets of the matrix",
            where=arrays.where(name),
            expected=f"{num_rows + 1} whole numbers that grow from 0 to {num_values}",
        )
    return indptr


def _both_directions(arrays: NpzFile, num_nodes: int) -> NDArray[np.int64]:
    targets = arrays.load("adj_indices", MAX_ADJACENCY_BYTES).reshape(-1)
    indptr = _load_indptr(arrays, "adj_indptr", num_rows=num_nodes, num_values=targets.size)
    wrong = np.flatnonzero((targets < 0) | (targets >= num_nodes)) if targets.dtype.kind in "iu" else np.array([0])
    if wrong.size:
        raise InvalidInputError(
            f"an edge leads to node {targets[wrong[0]]}",
            where=f"{arrays.where('adj_indices')}, row {int(wrong[0]) + 1}",
            expected=f"whole numbers from 0 to {num_nodes - 1}",
        )
    ends = targets.astype(np.int64)
    starts = np.repeat(np.arange(num_nodes, dtype=np.int64), np.diff(indptr))
    keys = np.unique(np.concatenate([starts * num_nodes + ends, ends * num_nodes + starts]))
    return np.stack(np.divmod(keys, max(num_nodes, 1)))


def _sparse_features(arrays: NpzFile, num_nodes: int) -> SparseSource:
    shape = arrays.load("attr_shape", 64).reshape(-1)
    if shape.size != 2 or shape.dtype.kind not in "iu" or shape[0] != num_nodes or shape[1] < 0:
        raise InvalidInputError(
            f"attr_shape is {shape.tolist()}", where=arrays.where("attr_shape"), expected=f"[{num_nodes}, any]"
        )
    num_values = arrays.header("attr_data").size
    if arrays.header("attr_indices").shape != (num_values,) or arrays.header("attr_indices").dtype.kind not in "iu":
        raise InvalidInputError(
            f"attr_indices have shape {arrays.header('attr_indices').shape}",
            where=arrays.where("attr_indices"),
            expected=f"whole numbers of shape ({num_values},)",
        )
    indptr = _load_indptr(arrays, "attr_indptr", num_rows=num_nodes, num_values=num_values)

    def blocks(max_rows: int) -> Iterator[CsrBlock]:
        with ExitStack() as handles:
            indices = handles.enter_context(arrays.cursor("attr_indices"))
            values = handles.enter_context(arrays.cursor("attr_data"))
            for first in range(0, num_nodes, max_rows):
                offsets = indptr[first : first + max_rows + 1]
                count = int(offsets[-1] - offsets[0])
                yield CsrBlock(offsets - offsets[0], indices.take(count), values.take(count))

    return SparseSource(int(shape[1]), num_values, arrays.where("attr_data"), blocks)


def _open_reddit(files: PublishedFiles, cache: Path, *, adds: bool) -> GraphSource:
    edges_file = next((name for name in REDDIT_EDGES if files.has(name)), None)
    if edges_file is None or not files.has(REDDIT_NODES):
        missing = REDDIT_NODES if edges_file else REDDIT_EDGES[0]
        raise InvalidInputError("Reddit is two files, one is missing", where=files.root, expected=missing)
    nodes = open_published_npz(files, REDDIT_NODES, cache=cache, skip_objects=True)
    graph = open_published_npz(files, edges_file, cache=cache, skip_objects=True)
    kind = graph.load("format", 64).reshape(-1)
    if kind.tolist() not in ([b"coo"], ["coo"]):
        raise InvalidInputError(f"the matrix has format {kind.tolist()}", where=graph.where("format"), expected="coo")
    num_all = _square(graph, "shape")
    num_nodes = nodes.header("label").size if adds else num_all
    num_edges = graph.header("row").size
    for name in ("row", "col"):
        header = graph.header(name)
        if header.shape != (num_edges,) or header.dtype.kind not in "iu":
            raise InvalidInputError(
                f"{name} has shape {header.shape} and dtype {header.dtype}",
                where=graph.where(name),
                expected=f"whole numbers of shape ({num_edges},)",
            )
    return GraphSource(
        name="reddit",
        num_nodes=num_nodes,
        num_edges_hint=num_edges,
        edges=npy_edges(graph, "row", "col"),
        features=_dense_features(nodes, num_nodes),
        columns=(binary_column(nodes, "label", column="label", num_nodes=num_nodes), _split_column(nodes, num_nodes)),
        num_classes=DATASETS["reddit"].num_classes,
        provenance={"source": "dgl", "name": "reddit", "edges": edges_file},
    )


def _dense_features(nodes: NpzFile, num_nodes: int) -> DenseSource:
    header = nodes.header("feature")
    if len(header.shape) != 2 or header.shape[0] != num_nodes or header.dtype.kind != "f":
        raise InvalidInputError(
            f"feature has shape {header.shape} and dtype {header.dtype}",
            where=nodes.where("feature"),
            expected=f"floats of shape ({num_nodes}, any)",
        )

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        for block in nodes.blocks("feature", max_rows):
            yield block.astype(np.float32, copy=False)

    return DenseSource(header.shape[1], np.dtype(np.float32), nodes.where("feature"), blocks)


def _split_column(nodes: NpzFile, num_nodes: int) -> ColumnSource:
    """``node_types`` 1, 2, 3 as 0, 1, 2; anything else is in no part."""
    types = binary_column(nodes, "node_types", column="split", num_nodes=num_nodes)

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        for block in types.blocks(max_rows):
            yield np.where((block >= 1) & (block <= 3), block - 1, -1).astype(np.int8)

    return replace(types, dtype=np.dtype(np.int8), blocks=blocks)
