"""A graph in files of edges: Parquet, Arrow IPC, text, raw pairs; features and labels beside them.

Everything is streamed. Raw pairs are read by each loader itself, Arrow files are mapped, text and Parquet are read
in order by the iterator, one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import EdgeBlock, EdgeLoader, GraphSource
from ecgl_scale.store.sources.edge_text import TEXT_SUFFIXES, open_text_edges
from ecgl_scale.store.sources.node_columns import check_integers, join_columns
from ecgl_scale.store.sources.node_files import open_columns, open_features, open_labels
from ecgl_scale.store.sources.npy import reading
from ecgl_scale.store.sources.tables import TABLE_SUFFIXES, Table, is_table, open_table

RawDtype = Literal["uint32", "uint64"]
RAW_SUFFIXES = (".u32", ".u64", ".bin")


@dataclass(frozen=True)
class _EdgeFile:
    num_edges: int
    loaders: Callable[[int], Iterator[EdgeLoader]]


def open_edge_files(
    paths: Sequence[Path],
    *,
    num_nodes: int,
    features: Path | None = None,
    labels: Path | None = None,
    columns: Path | None = None,
    src_column: str = "src",
    dst_column: str = "dst",
    raw_dtype: RawDtype = "uint32",
) -> GraphSource:
    """Describe a graph in files of edges.

    Parameters
    ----------
    paths
        Files, or glob patterns, of one or several formats; a pattern's matches come in sorted order.
    num_nodes
        Ids run from 0 to this, exclusive.
    features
        A .npy file or a Zarr array directory of shape [num_nodes, K].
    labels
        A .npy file, or Parquet with a column ``label`` or a single column.
    columns
        Further node columns: .npz, Parquet or Arrow.
    src_column, dst_column
        Names of the columns in Parquet, Arrow, and text with a header.
    raw_dtype
        What .bin files hold; .u32 and .u64 say it by their names.
    """
    if num_nodes < 0:
        raise InvalidInputError(f"the number of nodes is {num_nodes}", expected="0 or more")
    expanded = expand_paths(paths)
    files = [_open_edges(path, src_column, dst_column, raw_dtype) for path in expanded]
    return GraphSource(
        name=expanded[0].name.split(".")[0],
        num_nodes=num_nodes,
        num_edges_hint=sum(file.num_edges for file in files),
        edge_loaders=partial(_all_loaders, files),
        features=None if features is None else open_features(Path(features), num_nodes),
        columns=join_columns(
            [] if labels is None else [open_labels(Path(labels), num_nodes)],
            [] if columns is None else open_columns(Path(columns), num_nodes),
        ),
        provenance={
            "kind": "edges",
            "paths": [str(path) for path in expanded],
            "features": None if features is None else str(features),
            "labels": None if labels is None else str(labels),
            "columns": None if columns is None else str(columns),
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


def _open_edges(path: Path, src_column: str, dst_column: str, raw_dtype: RawDtype) -> _EdgeFile:
    with reading(path):
        path.stat()
    if path.is_dir():
        raise InvalidInputError("this is a directory", where=path, fix=f"give the files in it, as {path}/*.parquet")
    name = path.name.lower()
    if is_table(path):
        table = open_table(path)
        for column in (src_column, dst_column):
            check_integers(table.dtype(column), f"the ids of column {column!r}", path)
        return _EdgeFile(table.num_rows, partial(_table_loaders, table, src_column, dst_column))
    if name.endswith(TEXT_SUFFIXES):
        text = open_text_edges(path, src_column, dst_column)
        return _EdgeFile(text.num_edges, text.loaders)
    if name.endswith(RAW_SUFFIXES):
        dtype = np.dtype({".u32": "<u4", ".u64": "<u8"}.get(path.suffix.lower(), np.dtype(raw_dtype).newbyteorder("<")))
        return _open_raw(path, dtype)
    raise InvalidInputError(
        "we cannot tell the format of this file by its name",
        where=path,
        expected=f"a name that ends with one of {', '.join((*TABLE_SUFFIXES, *TEXT_SUFFIXES, *RAW_SUFFIXES))}",
    )


def _all_loaders(files: Sequence[_EdgeFile], max_edges: int) -> Iterator[EdgeLoader]:
    for file in files:
        yield from file.loaders(max(1, max_edges))


def _table_loaders(table: Table, src_column: str, dst_column: str, max_edges: int) -> Iterator[EdgeLoader]:
    first_row = 0
    for batch in table.batches([src_column, dst_column], max_edges):
        yield partial(_table_block, table, batch, src_column, dst_column, first_row)
        first_row += batch.num_rows


def _table_block(table: Table, batch: Any, src_column: str, dst_column: str, first_row: int) -> EdgeBlock:
    src, dst = (table.values(batch, column, first_row) for column in (src_column, dst_column))
    return EdgeBlock(src, dst, str(table.path), first_row)


def _open_raw(path: Path, dtype: np.dtype[Any]) -> _EdgeFile:
    size = path.stat().st_size
    if size % (2 * dtype.itemsize):
        raise InvalidInputError(
            f"the file has {size} bytes, not a whole number of pairs",
            where=path,
            expected=f"little-endian {dtype.name} pairs of {2 * dtype.itemsize} bytes",
        )
    num_edges = size // (2 * dtype.itemsize)
    return _EdgeFile(num_edges, partial(_raw_loaders, path, dtype, num_edges))


def _raw_loaders(path: Path, dtype: np.dtype[Any], num_edges: int, max_edges: int) -> Iterator[EdgeLoader]:
    for first in range(0, num_edges, max_edges):
        yield partial(_read_raw, path, dtype, first, min(max_edges, num_edges - first))


def _read_raw(path: Path, dtype: np.dtype[Any], first: int, count: int) -> EdgeBlock:
    with reading(path):
        values = np.fromfile(path, dtype, 2 * count, offset=2 * first * dtype.itemsize)
    if values.size != 2 * count:
        raise InvalidInputError("the file shrank while we read it", where=path)
    pairs = values.astype(dtype.newbyteorder("="), copy=False).reshape(-1, 2)
    src, dst = (np.ascontiguousarray(pairs[:, side]) for side in (0, 1))
    return EdgeBlock(src, dst, str(path), first)
