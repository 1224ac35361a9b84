"""A graph in files of edges: Parquet, Arrow IPC, text, raw pairs; features and labels beside them.

Nodes are numbers, or keys that the store will know. Raw pairs are read by their numbers, tables by parts where these
are small enough (``table_edges``). Everything else is streamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeSource, JoinedEdges, StreamedEdges
from ecgl_scale.store.source import GraphSource
from ecgl_scale.store.sources.arrays import no_edges
from ecgl_scale.store.sources.edge_text import TEXT_SUFFIXES, open_text_edges
from ecgl_scale.store.sources.keyed_edges import KeyedTableEdges, KeyedTextEdges
from ecgl_scale.store.sources.names import table_names
from ecgl_scale.store.sources.node_columns import check_integers, join_columns
from ecgl_scale.store.sources.node_files import count_rows, open_columns, open_features, open_labels
from ecgl_scale.store.sources.npy import reading
from ecgl_scale.store.sources.npy_edges import NpyEdges
from ecgl_scale.store.sources.table_edges import TableEdges
from ecgl_scale.store.sources.tables import TABLE_SUFFIXES, is_table, open_table

RawDtype = Literal["uint32", "uint64"]
RAW_SUFFIXES = (".u32", ".u64", ".bin")


def open_edge_files(
    paths: Sequence[Path] | None,
    *,
    num_nodes: int | None = None,
    features: Path | None = None,
    labels: Path | None = None,
    columns: Path | None = None,
    id_column: str | None = None,
    src_column: str = "src",
    dst_column: str = "dst",
    raw_dtype: RawDtype = "uint32",
    by_key: bool = False,
) -> GraphSource:
    """Describe a graph in files of edges, or nodes alone that come to a graph which is there.

    Parameters
    ----------
    paths
        Files, or glob patterns, of one or several formats; a pattern's matches come in sorted order. None: no edges.
    num_nodes
        Ids run from 0 to this, exclusive; where the nodes come to a graph that is there, on from its nodes. If not
        given: as many as ``features`` has rows, else none.
    features
        A .npy file or a Zarr array directory of shape [num_nodes, K].
    labels
        A .npy file, or Parquet, Arrow or .csv with a column ``label`` or a single column; numbers or words.
    columns
        Further node columns: .npz, Parquet, Arrow or .csv.
    id_column
        Which of them has the keys of the nodes.
    src_column, dst_column
        Names of the columns in Parquet, Arrow, and text with a header.
    raw_dtype
        What .bin files hold; .u32 and .u64 say it by their names.
    by_key
        Edges name nodes by their keys, not by their numbers.
    """
    if num_nodes is None:
        num_nodes = 0 if features is None else count_rows(Path(features))
    if num_nodes < 0:
        raise InvalidInputError(f"the number of nodes is {num_nodes}", expected="0 or more")
    expanded = [] if paths is None else expand_paths(paths)
    ends = (src_column, dst_column)
    opened = [_open_keyed(path, *ends) if by_key else _open_edges(path, *ends, raw_dtype) for path in expanded]
    edges = JoinedEdges(tuple(part for part, _ in opened), tuple(count for _, count in opened))
    return GraphSource(
        name=expanded[0].name.split(".")[0] if expanded else "nodes",
        num_nodes=num_nodes,
        num_edges_hint=sum(edges.counts),
        edges=edges if expanded else no_edges("no file"),
        features=None if features is None else open_features(Path(features), num_nodes),
        columns=join_columns(
            [] if labels is None else [open_labels(Path(labels), num_nodes)],
            [] if columns is None else open_columns(Path(columns), num_nodes, id_column),
        ),
        id_column=id_column,
        provenance={
            "kind": "edges",
            "paths": [str(path) for path in expanded],
            "features": None if features is None else str(features),
            "labels": None if labels is None else str(labels),
            "columns": None if columns is None else str(columns),
            **({"by_key": True} if by_key else {}),
        },
    )


def expand_paths(paths: Sequence[Path]) -> list[Path]:
    """Replace glob patterns by their matches, sorted; a file named twice is refused."""
    expanded: list[Path] = []
    for path in map(Path, paths):
        if path.exists() or not any(mark in str(path) for mark in "*?["):
            expanded.append(path)
            continue
        root = Path(path.anchor) if path.anchor else Path()
        matches = sorted(root.glob(str(path.relative_to(path.anchor))))
        if not matches:
            raise InvalidInputError("no file matches this pattern", where=path, fix="check the pattern and its folder")
        expanded += matches
    if not expanded:
        raise InvalidInputError("no file of edges is given", expected="at least one")
    seen: set[Path] = set()
    for path in expanded:
        if path.resolve() in seen:
            raise InvalidInputError("this file is given twice", where=path, fix="name each file once")
        seen.add(path.resolve())
    return expanded


def _open_edges(path: Path, src_column: str, dst_column: str, raw_dtype: RawDtype) -> tuple[EdgeSource, int]:
    """The edges of a file, and how many there are."""
    with reading(path):
        path.stat()
    if path.is_dir():
        raise InvalidInputError("this is a directory", where=path, fix=f"give the files in it, as {path}/*.parquet")
    name = path.name.lower()
    if is_table(path):
        table = open_table(path)
        for column in (src_column, dst_column):
            check_integers(table.dtype(column), f"the ids of column {column!r}", path)
        return TableEdges(table, src_column, dst_column), table.num_rows
    if name.endswith(TEXT_SUFFIXES):
        text = open_text_edges(path, src_column, dst_column)
        return StreamedEdges(text.blocks), text.num_edges
    if name.endswith(RAW_SUFFIXES):
        dtype = np.dtype({".u32": "<u4", ".u64": "<u8"}.get(path.suffix.lower(), np.dtype(raw_dtype).newbyteorder("<")))
        return _open_raw(path, dtype)
    raise InvalidInputError(
        "we cannot tell the format of this file by its name",
        where=path,
        expected=f"a name that ends with one of {', '.join((*TABLE_SUFFIXES, *TEXT_SUFFIXES, *RAW_SUFFIXES))}",
    )


def _open_keyed(path: Path, src_column: str, dst_column: str) -> tuple[EdgeSource, int]:
    """The edges of a file that names nodes by their keys, and how many there are."""
    with reading(path):
        path.stat()
    if is_table(path):
        table = open_table(path)
        for column in (src_column, dst_column):
            table_names(column, table)  # which looks at its type
        return KeyedTableEdges(table, src_column, dst_column), table.num_rows
    if path.name.lower().endswith(TEXT_SUFFIXES):
        text = open_text_edges(path, src_column, dst_column, by_key=True)
        return KeyedTextEdges(text), text.num_edges
    raise InvalidInputError(
        "files of this format do not name nodes by keys",
        where=path,
        expected=f"a name that ends with one of {', '.join((*TABLE_SUFFIXES, *TEXT_SUFFIXES))}",
    )


def _open_raw(path: Path, dtype: np.dtype[Any]) -> tuple[EdgeSource, int]:
    size = path.stat().st_size
    if size % (2 * dtype.itemsize):
        raise InvalidInputError(
            f"the file has {size} bytes, not a whole number of pairs",
            where=path,
            expected=f"little-endian {dtype.name} pairs of {2 * dtype.itemsize} bytes",
        )
    num_edges = size // (2 * dtype.itemsize)
    return NpyEdges(path, str(path), num_edges, dtype.str, (0,)), num_edges
