"""Edges in text: .csv, .tsv, .txt, each also gzipped; streamed in blocks of a few MiB by Arrow's reader.

A header row names the columns, or there are exactly two columns and no header. Leading lines that start with # or %
are comments, as SNAP and Matrix Market write them. Arrow reads with one thread here: only then it can tell the row
that is wrong.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeBlock
from ecgl_scale.store.sources.npy import reading
from ecgl_scale.units import KIB, MIB

TEXT_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
SAMPLE_BYTES = 64 * KIB
GZIP_RATIO = 4
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class TextEdges:
    """A text file of edges, its layout guessed from the first lines."""

    path: Path
    delimiter: str
    skip_rows: int
    """Comments and the header, which come before the first edge."""
    names: tuple[str, ...]
    src_column: str
    dst_column: str
    num_edges: int
    """Estimated from the file's size and the first rows."""
    by_key: bool = False
    """Nodes are keys, whatever they look like, and so text."""

    def blocks(self, max_edges: int) -> Iterator[EdgeBlock]:
        """Read blocks of edges in order."""
        for batch, first_row in self.batches(max_edges):
            src, dst = (self._ids(batch, name, first_row) for name in (self.src_column, self.dst_column))
            yield EdgeBlock(src, dst, str(self.path), first_row)

    def batches(self, max_edges: int) -> Iterator[tuple[Any, int]]:
        """Read both columns in order, each batch with its first line."""
        max_edges = max(1, max_edges)
        reader = self._next(self._open, max_edges)
        first_row = self.skip_rows + 1
        while reader is not None and (batch := self._next(next, reader, None)) is not None:
            for first in range(0, batch.num_rows, max_edges):
                part = batch.slice(first, max_edges)
                yield part, first_row
                first_row += part.num_rows

    def _open(self, max_edges: int) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        wanted = [self.src_column, self.dst_column]
        return csv.open_csv(
            pa.input_stream(str(self.path), compression="gzip" if self.path.suffix == ".gz" else None),
            read_options=csv.ReadOptions(
                use_threads=False,
                block_size=min(max(16 * max_edges, SAMPLE_BYTES), 8 * MIB),
                skip_rows=self.skip_rows,
                column_names=self.names,
            ),
            parse_options=csv.ParseOptions(delimiter=self.delimiter),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string() if self.by_key else pa.int64()),
                include_columns=wanted,
                strings_can_be_null=True,
                null_values=["", *([] if self.by_key else csv.ConvertOptions().null_values)],
            ),
        )

    def _next(self, step: Any, *arguments: Any) -> Any:
        from pyarrow import ArrowInvalid

        with reading(self.path):
            try:
                return step(*arguments)
            except ArrowInvalid as error:
                raise self._explain(str(error)) from error

    def _explain(self, text: str) -> InvalidInputError:
        row = re.search(r"Row #(\d+)", text)
        where = f"{self.path}, row {row[1]}" if row else str(self.path)
        if ragged := re.search(r"Expected (\d+) columns, got (\d+)", text):
            return InvalidInputError(f"the row has {ragged[2]} fields", where=where, expected=f"{ragged[1]} fields")
        if bad := re.search(r"invalid value '(.*)'", text, re.DOTALL):
            return InvalidInputError(f"{bad[1]!r} is not a node id", where=where, expected="an integer below 2^63")
        return InvalidInputError(f"the file cannot be read as text: {text}", where=where)

    def _ids(self, batch: Any, name: str, first_row: int) -> Any:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            first_null = int(np.argmax(as_numpy(column.is_null())))
            row = first_row + first_null
            raise InvalidInputError(
                f"column {name!r} is empty", where=f"{self.path}, row {row}", expected="an integer in every row"
            )
        return as_numpy(column)


def open_text_edges(path: Path, src_column: str, dst_column: str, *, by_key: bool = False) -> TextEdges:
    """Look at the first lines of a text file of edges."""
    with reading(path):
        size = path.stat().st_size
        is_gzip = path.suffix == ".gz"
        with gzip.open(path) if is_gzip else path.open("rb") as stream:
            sample = stream.read(SAMPLE_BYTES)
    lines = sample.decode("utf-8-sig", errors="replace").splitlines()
    is_row = [bool(line.strip()) and not line.startswith(("#", "%")) for line in lines]
    first_row = is_row.index(True) if any(is_row) else len(lines)
    rows = [line for line in lines[first_row:] if line.strip()]
    if not rows:
        raise InvalidInputError("the file has no rows", where=path, expected="two columns of node ids")
    delimiter = _delimiter(path, rows[0])
    fields = [field.strip().strip('"') for field in rows[0].split(delimiter)]
    has_header = not all(_INTEGER.fullmatch(field) for field in fields)
    if by_key:  # which may be any words
        has_header = src_column in fields and dst_column in fields
    if has_header:
        _check_header(path, fields, src_column, dst_column)
    elif len(fields) != 2:
        raise InvalidInputError(
            f"the file has {len(fields)} columns and no header",
            where=f"{path}, row {first_row + 1}",
            expected=f"two columns, or a first row that names {src_column!r} and {dst_column!r}",
        )
    num_edges = len(rows) - has_header
    if len(sample) == SAMPLE_BYTES:
        num_edges = max(num_edges, size * (GZIP_RATIO if is_gzip else 1) * len(rows) // SAMPLE_BYTES)
    names = tuple(fields) if has_header else (src_column, dst_column)
    return TextEdges(path, delimiter, first_row + has_header, names, src_column, dst_column, num_edges, by_key)


def _delimiter(path: Path, row: str) -> str:
    usual = "," if ".csv" in path.suffixes else "\t"
    return next((mark for mark in (usual, "\t", ",", ";", " ") if mark in row), usual)


def _check_header(path: Path, fields: list[str], src_column: str, dst_column: str) -> None:
    for name in (src_column, dst_column):
        if fields.count(name) != 1:
            raise InvalidInputError(
                f"there is no column {name!r}" if name not in fields else f"there are two columns {name!r}",
                where=path,
                expected=f"one of the columns there are: {', '.join(fields[:50])}",
                fix="name the columns of the edges, or give a file of two columns without a header",
            )
