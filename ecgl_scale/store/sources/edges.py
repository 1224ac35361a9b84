"""A graph in files of edges: Parquet, Arrow IPC, text, raw pairs; features and labels beside them.

Raw pairs are read by their numbers; Parquet by row groups and Arrow by batches, as long as these are not larger than
what is asked for at once. Everything else is streamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, JoinedEdges, StreamedEdges, file_identity
from ecgl_scale.store.source import GraphSource
from ecgl_scale.store.sources.edge_text import TEXT_SUFFIXES, open_text_edges
from ecgl_scale.store.sources.node_columns import check_integers, join_columns
from ecgl_scale.store.sources.node_files import open_columns, open_features, open_labels
from ecgl_scale.store.sources.npy import reading
from ecgl_scale.store.sources.npy_edges import NpyEdges
from ecgl_scale.store.sources.tables import TABLE_SUFFIXES, Table, is_table, open_table

RawDtype = Literal["uint32", "uint64"]
RAW_SUFFIXES = (".u32", ".u64", ".bin")
PARTS_JOINED = 8
"""Parts are joined up to this fraction of a piece: a copy costs more than one small piece, and less than tiny ones."""


def open_edge_files(
    paths: Sequence[Path],
    *,
    num_nodes: int,
    features: Path | None = None,
    labels: Path | None = None,
    columns: Path | None = None,
    id_column: str | None = None,
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
        A .npy file, or Parquet, Arrow or .csv with a column ``label`` or a single column; numbers or words.
    columns
        Further node columns: .npz, Parquet, Arrow or .csv.
    id_column
        Which of them has the keys of the nodes.
    src_column, dst_column
        Names of the columns in Parquet, Arrow, and text with a header.
    raw_dtype
        What .bin files hold; .u32 and .u64 say it by their names.
    """
    if num_nodes < 0:
        raise InvalidInputError(f"the number of nodes is {num_nodes}", expected="0 or more")
    expanded = expand_paths(paths)
    parts, counts = zip(*(_open_edges(path, src_column, dst_column, raw_dtype) for path in expanded), strict=True)
    return GraphSource(
        name=expanded[0].name.split(".")[0],
        num_nodes=num_nodes,
        num_edges_hint=sum(counts),
        edges=JoinedEdges(parts, counts),
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


@dataclass(frozen=True)
class TableEdges(EdgeSource):
    """Edges in a Parquet or Arrow file, of which row groups or batches can be read by themselves."""

    kind = "table"
    table: Table
    src_column: str
    dst_column: str

    def cut(self, max_edges: int) -> list[Block] | None:
        """Single parts, or runs of small ones, which are copied together.

        None where a part alone has more edges than a piece: it would be decoded anew for each.
        """
        parts = self.table.parts
        if parts is None or max(parts, default=0) > max_edges:
            return None
        cuts = [0]
        for stop in accumulate(parts):
            if len(cuts) > 1 and stop - cuts[-2] <= max_edges // PARTS_JOINED:
                cuts[-1] = stop
            elif stop > cuts[-1]:
                cuts.append(stop)
        return [Block(index, *bounds) for index, bounds in enumerate(pairwise(cuts))]

    def read(self, start: int, stop: int) -> EdgeBlock:
        """The parts that begin from ``start`` on, before ``stop``."""
        starts = [0, *accumulate(self.table.parts or ())]
        wanted = [part for part, first in enumerate(starts[:-1]) if start <= first < stop]
        blocks = list(self._blocks(stop - start, start, wanted))
        if len(blocks) == 1:
            return blocks[0]
        src, dst = (np.concatenate([getattr(block, side) for block in blocks]) for side in ("src", "dst"))
        return EdgeBlock(src, dst, str(self.table.path), start)

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        return self._blocks(max_edges, 0)

    def _blocks(self, max_edges: int, first_row: int, parts: Sequence[int] | None = None) -> Iterator[EdgeBlock]:
        names = [self.src_column, self.dst_column]
        for batch in self.table.batches(names, max_edges, parts):
            src, dst = (self.table.values(batch, name, first_row) for name in names)
            yield EdgeBlock(src, dst, str(self.table.path), first_row)
            first_row += batch.num_rows

    def identity(self) -> Json:
        """The file and its columns."""
        return {**self.describe(self.table.path), "file": file_identity(self.table.path)}

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Name the file and its columns."""
        return {"path": str(self.table.path), "src_column": self.src_column, "dst_column": self.dst_column}

    @classmethod
    def open(cls, description: Json) -> TableEdges:
        """Open the file again."""
        return cls(open_table(Path(description["path"])), description["src_column"], description["dst_column"])


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
