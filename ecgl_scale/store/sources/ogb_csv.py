"""The csv.gz files of OGB's raw folders, decompressed and parsed in blocks of a few MiB.

Rows are parsed on one thread: only then does Arrow say which row is wrong. Memory: one block of text, its columns and
one array made of them; the split keeps the ids its files name, 4 bytes each.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeBlock, IntArray
from ecgl_scale.store.source import AnyArray, ColumnSource, DenseSource
from ecgl_scale.store.sources.archive import PublishedFiles
from ecgl_scale.store.sources.npy import reading
from ecgl_scale.units import MIB

MAX_BLOCK_BYTES = MIB
MIN_BLOCK_BYTES = MIB // 4
"""A row must fit in a block; the widest published row has about 3 KiB."""

_NO_VALUE = ["", "nan", "NaN"]
_ROW = re.compile(r"Row #(\d+)")
SPLIT_PARTS = ("train", "valid", "test")


def csv_blocks(
    files: PublishedFiles, name: str, *, num_columns: int, kind: pa.DataType, max_rows: int, num_rows: int | None = None
) -> Iterator[tuple[int, list[AnyArray]]]:
    """Yield ``(first_row, columns)`` of at most ``max_rows`` rows; ``num_rows`` is how many there must be in all."""
    origin = files.origin(name)
    names = [str(index) for index in range(num_columns)]
    block_bytes = min(max(max_rows * num_columns * 8, MIN_BLOCK_BYTES), MAX_BLOCK_BYTES)
    done = 0
    with files.open(name) as handle, reading(origin):
        try:
            reader = pacsv.open_csv(
                pa.CompressedInputStream(pa.PythonFile(handle, mode="r"), "gzip"),
                read_options=pacsv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=names),
                convert_options=pacsv.ConvertOptions(
                    check_utf8=False,
                    column_types=dict.fromkeys(names, kind),
                    null_values=_NO_VALUE if pa.types.is_floating(kind) else [],
                ),
            )
            for batch in reader:
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                if num_rows is not None and done + batch.num_rows > num_rows:
                    raise InvalidInputError("the file has too many rows", where=origin, expected=f"{num_rows} rows")
                for first in range(0, batch.num_rows, max_rows):
                    yield done + first, [column[first : first + max_rows] for column in columns]
                done += batch.num_rows
        except pa.ArrowInvalid as error:
            raise _bad_row(error, origin, num_columns, kind) from error
    if num_rows is not None and done < num_rows:
        raise InvalidInputError(f"the file has only {done} rows", where=origin, expected=f"{num_rows} rows")


def _bad_row(error: Exception, origin: str, num_columns: int, kind: pa.DataType) -> InvalidInputError:
    text = str(error)
    row = _ROW.search(text)
    noun = "number" if pa.types.is_floating(kind) else "whole number"
    return InvalidInputError(
        f"a row cannot be read: {text[:300]}",
        where=f"{origin}, row {row[1]}" if row else origin,
        expected=f"{num_columns} {noun}{'s' if num_columns > 1 else ''} in every row, separated by commas",
    )


def read_count(files: PublishedFiles, name: str) -> int:
    """The one number in a ``num-…-list`` file."""
    (_, (values,)), *_ = csv_blocks(files, name, num_columns=1, kind=pa.int64(), max_rows=1, num_rows=1)
    if values[0] < 0:
        raise InvalidInputError(f"the count is {values[0]}", where=files.origin(name), expected="0 or more")
    return int(values[0])


def csv_edges(files: PublishedFiles, max_edges: int, *, num_edges: int, inverse: bool) -> Iterator[EdgeBlock]:
    """Yield the edges, each followed by its inverse where OGB's loader adds it."""
    name = "raw/edge.csv.gz"
    origin = files.origin(name)
    blocks = csv_blocks(files, name, num_columns=2, kind=pa.int64(), max_rows=max_edges, num_rows=num_edges)
    for first_row, (src, dst) in blocks:
        if not inverse:
            yield EdgeBlock(src, dst, origin, first_row)
            continue
        sources, targets = _with_inverse(src, dst), _with_inverse(dst, src)
        for first in range(0, sources.size, max_edges):
            part = slice(first, first + max_edges)
            yield EdgeBlock(sources[part], targets[part], origin, first_row + first // 2)


def _with_inverse(one: IntArray, other: IntArray) -> IntArray:
    both = np.empty(2 * one.size, dtype=one.dtype)
    both[0::2] = one
    both[1::2] = other
    return both


def csv_features(files: PublishedFiles, *, num_nodes: int) -> DenseSource | None:
    """The features as float32, or None where the folder has none."""
    name = "raw/node-feat.csv.gz"
    if not files.has(name):
        return None
    num_features = _count_columns(files, name)

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        rows = csv_blocks(
            files, name, num_columns=num_features, kind=pa.float32(), max_rows=max_rows, num_rows=num_nodes
        )
        for _, columns in rows:
            block = np.empty((columns[0].size, num_features), np.float32)
            for index, column in enumerate(columns):
                block[:, index] = column
            yield block

    return DenseSource(num_features, np.dtype(np.float32), files.origin(name), blocks)


def _count_columns(files: PublishedFiles, name: str) -> int:
    with files.open(name) as handle, reading(files.origin(name)), gzip.open(handle) as text:
        line = text.readline(MIN_BLOCK_BYTES)
    if not line.strip():
        raise InvalidInputError("the first row is empty", where=files.origin(name), expected="a row of features")
    return line.count(b",") + 1


def csv_column(files: PublishedFiles, name: str, *, column: str, num_nodes: int) -> ColumnSource:
    """A file of one whole number a node, as int32; no value becomes -1."""
    origin = files.origin(name)

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        # As floats, because missing labels are written as nan; whole numbers of int32's size are exact.
        rows = csv_blocks(files, name, num_columns=1, kind=pa.float64(), max_rows=max_rows, num_rows=num_nodes)
        for first_row, (values,) in rows:
            yield whole_numbers(values, origin=origin, first_row=first_row)

    return ColumnSource(column, np.dtype(np.int32), origin, blocks)


def whole_numbers(values: AnyArray, *, origin: str, first_row: int) -> NDArray[np.int32]:
    """Labels or years as int32, NaN as -1; anything that is no whole number is refused."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
        wrong = (values != np.floor(values)) | (np.abs(values) > np.iinfo(np.int32).max)
    elif values.dtype.kind in "iu":
        wrong = (values > np.iinfo(np.int32).max) | (values < np.iinfo(np.int32).min)
    else:
        raise InvalidInputError(f"the values have dtype {values.dtype}", where=origin, expected="whole numbers")
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInputError(
            f"{values[row]} is not a whole number that fits in 32 bits", where=f"{origin}, row {first_row + row + 1}"
        )
    return values.astype(np.int32)


def split_column(files: PublishedFiles, split: str, *, num_nodes: int) -> ColumnSource:
    """The official split: 0, 1, 2 for the ids in train, valid, test; -1 for a node in none of them."""
    names = [f"split/{split}/{part}.csv.gz" for part in SPLIT_PARTS]

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        parts = [_read_ids(files, name, num_nodes) for name in names]
        for first in range(0, num_nodes, max_rows):
            block = np.full(min(max_rows, num_nodes - first), -1, np.int8)
            for part, ids in enumerate(parts):
                low, high = np.searchsorted(ids, [first, first + block.size])
                inside = ids[low:high].astype(np.int64) - first
                if (block[inside] != -1).any():
                    raise InvalidInputError("a node is in two parts of the split", where=files.origin(names[part]))
                block[inside] = part
            yield block

    return ColumnSource("split", np.dtype(np.int8), files.origin(f"split/{split}"), blocks)


def _read_ids(files: PublishedFiles, name: str, num_nodes: int) -> NDArray[Any]:
    origin = files.origin(name)
    dtype = np.uint32 if num_nodes <= 1 << 32 else np.int64
    collected: list[NDArray[Any]] = [np.empty(0, dtype)]
    total = 0
    for first_row, (ids,) in csv_blocks(files, name, num_columns=1, kind=pa.int64(), max_rows=1 << 20):
        wrong = np.flatnonzero((ids < 0) | (ids >= num_nodes))
        if wrong.size:
            raise InvalidInputError(
                f"the split names node {ids[wrong[0]]}",
                where=f"{origin}, row {first_row + int(wrong[0]) + 1}",
                expected=f"ids below {num_nodes}",
            )
        total += ids.size
        if total > num_nodes:
            raise InvalidInputError("the split names a node twice", where=origin, expected="every id once")
        collected.append(ids.astype(dtype))
    ids = np.sort(np.concatenate(collected))
    if (ids[1:] == ids[:-1]).any():
        raise InvalidInputError("the split names a node twice", where=origin, expected="every id once")
    return ids
