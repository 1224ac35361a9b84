"""Columns of names: keys of nodes, classes in words. Text or whole numbers as Arrow arrays, streamed from any format.

Numbers come as int64 and text as Arrow strings, whatever the file has: numpy's unicode and bytes, Arrow's strings of
all kinds, and dictionaries of them. Missing values are nulls; whether these are welcome is for the reader to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import AnyArray, NameSource
from ecgl_scale.store.sources.npy import NpyFile, NpzFile, reading
from ecgl_scale.store.sources.tables import Table
from ecgl_scale.units import MIB

BLOCK_BYTES = 8 * MIB
"""What a block of numpy's text may take: it has as many bytes for each value as the longest needs."""
NO_DELIMITER = "\x01"
_WORD_DTYPES = ("object", "str", "string", "category")
"""What numpy and pandas call columns that may be words with gaps; numpy's own text is another matter."""
_TEXT_TYPES = ("string", "large_string", "string_view")


def is_text(arrow_type: str) -> bool:
    """Whether a type of Arrow, by its name, is of text, or a dictionary of text."""
    return arrow_type in _TEXT_TYPES or arrow_type.startswith(
        tuple(f"dictionary<values={kind}," for kind in _TEXT_TYPES)
    )


def as_words(values: Any) -> pa.Array | None:
    """Python's, pandas' and Arrow's sequences of words, in which some may be missing; None for anything else."""
    is_list = isinstance(values, list | tuple) and any(isinstance(value, str) for value in values)
    if not is_list and not isinstance(values, pa.Array) and str(getattr(values, "dtype", "")) not in _WORD_DTYPES:
        return None
    try:
        found = values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):
        return None
    return as_names(found, "labels") if isinstance(found, pa.Array) and is_text(str(found.type)) else None


def words_column(name: str, words: pa.Array, origin: str) -> NameSource:
    """Words in memory as a column."""

    def blocks(max_rows: int) -> Iterator[pa.Array]:
        return (words.slice(first, max_rows) for first in range(0, len(words), max_rows))

    return NameSource(name, "string", origin, blocks)


def key_column(name: str, keys: Sequence[Any]) -> NameSource:
    """Keys in memory as a column: texts or whole numbers."""
    origin = f"keys of {name!r}"
    try:
        found = pa.array(list(keys))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"these are no keys: {error}", where=origin, expected="texts, or numbers") from error
    if not pa.types.is_integer(found.type) and not is_text(str(found.type)):
        raise InvalidInputError(f"keys are of {found.type}", where=origin, expected="texts, or whole numbers")
    column = words_column(name, as_names(found, origin), origin)
    return replace(column, type="int64" if pa.types.is_integer(found.type) else "string")


def npy_names(name: str, file: NpyFile) -> NameSource:
    """The names in an .npy file."""
    return numpy_names(name, file.shape, file.dtype, str(file.path), file.blocks)


def npz_names(name: str, file: NpzFile) -> NameSource:
    """The names in a member of an .npz file."""
    header = file.header(name)
    return numpy_names(name, header.shape, header.dtype, file.where(name), partial(file.blocks, name))


def numpy_names(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], origin: str, blocks: Callable[[int], Iterator[AnyArray]]
) -> NameSource:
    """The names in blocks of a numpy array, wherever these come from."""
    if len(shape) != 1 or dtype.kind not in "iuUS":
        raise InvalidInputError(
            f"{name!r} has shape {shape} and dtype {dtype}", where=origin, expected="one text or whole number a node"
        )
    most_rows = max(1, BLOCK_BYTES // dtype.itemsize)

    def names(max_rows: int) -> Iterator[pa.Array]:
        first_row = 0
        for block in blocks(max(1, min(max_rows, most_rows))):
            yield as_names(pa.array(block), f"{origin}, rows from {first_row} on")
            first_row += len(block)

    return NameSource(name, "int64" if dtype.kind in "iu" else "string", origin, names)


def table_names(name: str, table: Table, *, is_by_node: bool = False) -> NameSource:
    """The names in a column of a table; ``is_by_node``: a row is a node, in their order."""
    origin = f"{table.path}, column {name}"
    found = table.type_of(name)
    if not is_text(found) and table.dtype(name).kind not in "iu":
        raise InvalidInputError(f"the column has type {found}", where=origin, expected="text or whole numbers")

    def names(max_rows: int) -> Iterator[pa.Array]:
        first_row = 0
        for batch in table.batches(table.with_node(name) if is_by_node else [name], max_rows):
            if is_by_node:
                table.check_order(batch, first_row)
            yield as_names(batch.column(name), f"{origin}, rows from {first_row} on")
            first_row += batch.num_rows

    return NameSource(name, "string" if is_text(found) else "int64", origin, names)


def text_names(path: Path, columns: tuple[str, ...], *, has_header: bool | None = None) -> NameSource:
    """The names in a text file, as text: one a line, or the one of ``columns`` that the first row names."""
    delimiter = "," if ".csv" in path.suffixes else "\t"
    with reading(path), pa.input_stream(str(path)) as stream:
        head = stream.read(1 << 16).decode("utf-8-sig", errors="replace").splitlines()
    fields = [field.strip().strip('"') for field in (head[0] if head else "").split(delimiter)]
    found = [name for name in columns if name in fields]
    if has_header or found:
        if not found:
            raise InvalidInputError(
                f"there is no column {columns[0]!r}", where=path, expected=f"one of the columns there are: {fields}"
            )
        return NameSource(found[0], "string", str(path), partial(_text_blocks, path, delimiter, fields, found[0]), 2)
    if len(fields) > 1 and path.suffix != ".txt":
        raise InvalidInputError(
            f"the first row does not name the column to read: {head[0]!r:.200}",
            where=f"{path}, row 1",
            expected=f"a column called {' or '.join(columns)}, or a single column",
        )
    separator = NO_DELIMITER if path.suffix == ".txt" else delimiter
    blocks = partial(_text_blocks, path, separator, None, columns[0]) if head else _no_blocks
    return NameSource(columns[0], "string", str(path), blocks, 1)


def _no_blocks(max_rows: int) -> Iterator[pa.Array]:  # noqa: ARG001
    return iter(())


def _text_blocks(path: Path, delimiter: str, fields: list[str] | None, name: str, max_rows: int) -> Iterator[pa.Array]:
    from pyarrow import csv

    quote: str | bool = False if delimiter == NO_DELIMITER else '"'
    with reading(path):
        reader = csv.open_csv(
            pa.input_stream(str(path)),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=MIB, column_names=fields or [name], skip_rows=1 if fields else 0
            ),
            parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=quote, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types={name: pa.string()}, include_columns=[name], strings_can_be_null=True, null_values=[""]
            ),
        )
    while True:
        with reading(path):
            batch = next(reader, None)
        if batch is None:
            return
        for first in range(0, batch.num_rows, max(1, max_rows)):
            yield batch.column(0).slice(first, max(1, max_rows))


def as_names(values: pa.Array, where: str) -> pa.Array:
    """Strings or int64 of whatever stands for them."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_number = pa.types.is_integer(values.type)
    try:
        found = values.cast(pa.int64() if is_number else pa.string())
    except pa.ArrowException as error:
        expected = "whole numbers below 2^63" if is_number else "text in UTF-8"
        raise InvalidInputError(f"a value cannot be a name: {error}", where=where, expected=expected) from error
    return found
