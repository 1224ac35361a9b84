"""OGB's node datasets as published: ogbn-arxiv, ogbn-products, ogbn-papers100M.

Read from the raw folder, from the zip as it is, or by name after a download. None of OGB's own loaders is called: they
load pickles and hold everything in memory. The ``processed`` folder they leave behind is ignored.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePosixPath

from ecgl_scale.base.events import EventSink, Note, ignore_events
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import StreamedEdges
from ecgl_scale.store.source import ColumnSource, GraphSource
from ecgl_scale.store.sources import ogb_binary, ogb_csv
from ecgl_scale.store.sources.archive import PublishedFiles, open_archive
from ecgl_scale.store.sources.download import download
from ecgl_scale.store.sources.npy_edges import npy_edges
from ecgl_scale.store.sources.ogb_table import OgbDataset, read_ogb_table, supported_datasets

CSV_EDGES = "raw/edge.csv.gz"
BINARY_GRAPH = "raw/data.npz"
BINARY_LABELS = "raw/node-label.npz"


def open_ogb(name_or_path: str, *, cache: Path, on_event: EventSink = ignore_events) -> GraphSource:
    """Open a dataset by name, by its folder, or by its zip.

    Parameters
    ----------
    name_or_path
        ``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-papers100M`` (looked for in ``cache``, else downloaded there), or a
        path in OGB's layout. A folder is recognised by its name (``arxiv``, ``ogbn_arxiv``) or its kind of split.
    cache
        Where downloads go, and a deflated ``data.npz`` of a zip.

    Returns
    -------
    GraphSource
        The edges OGB's loader gives, in its order: for ogbn-products each edge is followed by its inverse
        (61,859,140 rows make 123,718,280 edges); the citation graphs keep their direction.
        Columns: ``label`` (no label = -1), ``split`` and, where there is one, ``year``.
    """
    files, dataset = _locate(name_or_path, cache, on_event)
    if dataset is None:
        on_event(Note(f"{files.root} is in OGB's layout but is no dataset we know: edges are taken as they are"))
    split = _find_split(files, dataset)
    return _open_binary(files, dataset, split, cache) if files.has(BINARY_GRAPH) else _open_csv(files, dataset, split)


def _open_csv(files: PublishedFiles, dataset: OgbDataset | None, split: str | None) -> GraphSource:
    num_nodes = ogb_csv.read_count(files, "raw/num-node-list.csv.gz")
    num_edges = ogb_csv.read_count(files, "raw/num-edge-list.csv.gz")
    inverse = dataset is not None and dataset.add_inverse_edge
    columns = [ogb_csv.csv_column(files, "raw/node-label.csv.gz", column="label", num_nodes=num_nodes)]
    if files.has("raw/node_year.csv.gz"):
        columns.append(ogb_csv.csv_column(files, "raw/node_year.csv.gz", column="year", num_nodes=num_nodes))
    return GraphSource(
        name=_name(files, dataset),
        num_nodes=num_nodes,
        num_edges_hint=num_edges * (2 if inverse else 1),
        edges=StreamedEdges(partial(ogb_csv.csv_edges, files, num_edges=num_edges, inverse=inverse)),
        features=ogb_csv.csv_features(files, num_nodes=num_nodes),
        columns=(*columns, *_split_columns(files, split, num_nodes)),
        num_classes=dataset.num_classes if dataset else None,
        provenance=_provenance(files, dataset, split),
    )


def _open_binary(files: PublishedFiles, dataset: OgbDataset | None, split: str | None, cache: Path) -> GraphSource:
    graph = ogb_binary.open_arrays(files, BINARY_GRAPH, cache=cache)
    labels = ogb_binary.open_arrays(files, BINARY_LABELS, cache=cache)
    num_nodes, num_edges = ogb_binary.count_nodes(graph), ogb_binary.count_edges(graph)
    columns = [ogb_binary.binary_column(labels, "node_label", column="label", num_nodes=num_nodes)]
    if "node_year" in graph.members:
        columns.append(ogb_binary.binary_column(graph, "node_year", column="year", num_nodes=num_nodes))
    return GraphSource(
        name=_name(files, dataset),
        num_nodes=num_nodes,
        num_edges_hint=num_edges,
        edges=npy_edges(graph, "edge_index"),
        features=ogb_binary.binary_features(graph, num_nodes=num_nodes),
        columns=(*columns, *_split_columns(files, split, num_nodes)),
        num_classes=dataset.num_classes if dataset else None,
        provenance=_provenance(files, dataset, split),
    )


def _name(files: PublishedFiles, dataset: OgbDataset | None) -> str:
    return dataset.name if dataset else files.folder_name


def _split_columns(files: PublishedFiles, split: str | None, num_nodes: int) -> tuple[ColumnSource, ...]:
    return () if split is None else (ogb_csv.split_column(files, split, num_nodes=num_nodes),)


def _provenance(files: PublishedFiles, dataset: OgbDataset | None, split: str | None) -> dict[str, str | int | None]:
    return {
        "source": "ogb",
        "name": _name(files, dataset),
        "metric": dataset.metric if dataset else None,
        "split": split,
        "num_tasks": dataset.num_tasks if dataset else None,
    }


def _find_split(files: PublishedFiles, dataset: OgbDataset | None) -> str | None:
    """The official split where the dataset is known, else the only one there is."""
    found = files.subfolders("split")
    if dataset is None and len(found) > 1:
        raise InvalidInputError(
            "there are several splits", where=files.origin("split"), expected=f"one of {found} alone"
        )
    split = dataset.split if dataset else (found[0] if found else None)
    if split is None:
        return None
    for part in ogb_csv.SPLIT_PARTS:
        if not files.has(f"split/{split}/{part}.csv.gz"):
            raise InvalidInputError(
                "the split lacks a file (a split_dict.pt is a pickle and is not read)",
                where=files.origin(f"split/{split}"),
                expected=f"{part}.csv.gz",
                fix="give OGB's original zip or folder",
            )
    return split


def _locate(name_or_path: str, cache: Path, on_event: EventSink) -> tuple[PublishedFiles, OgbDataset | None]:
    path = Path(name_or_path)
    if path.exists():
        files = _open_path(path)
        return files, _recognise(files)
    dataset = supported_datasets().get(name_or_path)
    if dataset is not None:
        return _open_named(dataset, cache, on_event), dataset
    if name_or_path in read_ogb_table():
        raise InvalidInputError(
            f"{name_or_path} is not one homogeneous graph with one label a node",
            expected=f"one of {', '.join(supported_datasets())}",
        )
    raise InvalidInputError(
        f"{name_or_path!r} is neither a dataset of OGB nor a path",
        expected=f"one of {', '.join(supported_datasets())}, or a folder or zip in OGB's layout",
    )


def _is_raw(files: PublishedFiles) -> bool:
    return files.has(CSV_EDGES) or files.has(BINARY_GRAPH)


def _open_named(dataset: OgbDataset, cache: Path, on_event: EventSink) -> PublishedFiles:
    for folder in dataset.folder_names:
        if _is_raw(PublishedFiles(cache / folder)):
            return PublishedFiles(cache / folder)
    target = cache / PurePosixPath(dataset.url).name
    return _open_path(download(dataset.url, target, max_bytes=dataset.max_download_bytes, on_event=on_event))


def _open_path(path: Path) -> PublishedFiles:
    if path.is_dir():
        # The folder itself, or the one that holds it as OGB's zip unpacks it.
        folders = [path] if _is_raw(PublishedFiles(path)) else sorted(path.iterdir())
        found = [PublishedFiles(folder) for folder in folders if _is_raw(PublishedFiles(folder))]
    else:
        archive = open_archive(path)
        prefixes = {
            member.removesuffix(ending)
            for member in archive.members
            for ending in (CSV_EDGES, BINARY_GRAPH)
            if member == ending or member.endswith(f"/{ending}")
        }
        found = [PublishedFiles(path, prefix, archive) for prefix in sorted(prefixes)]
    if len(found) != 1:
        raise InvalidInputError(
            "there are several graphs here" if found else "this is not OGB's layout",
            where=path,
            expected=f"one folder with {CSV_EDGES} or {BINARY_GRAPH}",
            fix="give the folder that holds 'raw' and 'split', or OGB's zip",
        )
    return found[0]


def _recognise(files: PublishedFiles) -> OgbDataset | None:
    """The dataset by its folder's name; else by a kind of split that only one dataset has."""
    datasets = supported_datasets().values()
    for dataset in datasets:
        if files.folder_name in dataset.folder_names:
            return dataset
    for split in files.subfolders("split"):
        with_split = [dataset for dataset in datasets if dataset.split == split]
        if len(with_split) == 1:
            return with_split[0]
    return None
