"""Parquet, Arrow IPC and CSV tables, read batch by batch.

Parquet is decoded in order, one batch of a row group at a time. Arrow files are mapped: an uncompressed batch costs
no memory until it is touched; a compressed one is held whole. Text is read in blocks of a MiB, the first of which says
what is a number. Where numbers are wanted, nulls and other types are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import AnyArray
from ecgl_scale.store.sources.npy import reading
from ecgl_scale.units import MIB

PARQUET_SUFFIXES = (".parquet", ".pq")
IPC_SUFFIXES = (".arrow", ".feather", ".ipc")
CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
NODE = "node"
TABLE_SUFFIXES = (*PARQUET_SUFFIXES, *IPC_SUFFIXES)


@dataclass(frozen=True)
class Table:
    """A table file whose schema and row count have been read."""

    path: Path
    names: tuple[str, ...]
    dtypes: tuple[np.dtype[Any] | None, ...]
    """None where a column is not of plain numbers."""
    types: tuple[str, ...]
    """Arrow's names of the types, for messages."""
    num_rows: int
    parts: tuple[int, ...] | None
    """Rows of each part that can be read by itself, a row group or a batch; None for a stream."""

    def type_of(self, name: str) -> str:
        """Give Arrow's name of a column's type, or an error that lists the columns there are."""
        if self.names.count(name) != 1:
            raise InvalidInputError(
                f"there is no column {name!r}" if name not in self.names else f"there are two columns {name!r}",
                where=self.path,
                expected=f"one of the columns there are: {', '.join(self.names)}",
            )
        return self.types[self.names.index(name)]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Give the dtype of a column of numbers."""
        found = self.type_of(name)
        dtype = self.dtypes[self.names.index(name)]
        if dtype is None:
            raise InvalidInputError(f"column {name!r} has type {found}", where=self.path, expected="numbers")
        return dtype

    def batches(
        self, names: Sequence[str], max_rows: int, parts: Sequence[int] | None = None, *, as_text: str | None = None
    ) -> Iterator[Any]:
        """Stream record batches of some columns, of some parts or all, at most ``max_rows`` rows each.

        Of a table in text, the column ``as_text`` is given as it is written.
        """
        with ExitStack() as handles:
            with reading(self.path):
                batches = self._open(handles, list(names), max(1, max_rows), parts, as_text)
            while True:
                with reading(self.path):
                    batch = next(batches, None)
                    if batch is not None:
                        batch.validate()
                if batch is None:
                    return
                for first in range(0, batch.num_rows, max(1, max_rows)):
                    yield batch.slice(first, max(1, max_rows))

    def _open(
        self, handles: ExitStack, names: list[str], max_rows: int, parts: Sequence[int] | None, as_text: str | None
    ) -> Iterator[Any]:
        if is_csv(self.path):
            reader = handles.enter_context(_open_csv(self.path, as_text))
            return (batch.select(names) for batch in reader)
        if is_parquet(self.path):
            file = handles.enter_context(_open_parquet(self.path))
            row_groups = None if parts is None else list(parts)
            return iter(file.iter_batches(batch_size=max_rows, row_groups=row_groups, columns=names))
        # asking the reader for some fields only makes it copy even what is mapped
        reader = handles.enter_context(_open_ipc(self.path))
        return (batch.select(names) for batch in _ipc_batches(reader, parts))

    def values(self, batch: Any, name: str, first_row: int) -> AnyArray:
        """See a column of a batch as numpy; nulls are refused."""
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            row = first_row + int(np.argmax(as_numpy(column.is_null())))
            raise InvalidInputError(
                f"column {name!r} has a null", where=f"{self.path}, row {row}", expected="a number in every row"
            )
        values: AnyArray = column.to_numpy(zero_copy_only=False)
        return values

    def with_node(self, name: str) -> list[str]:
        """A column, and the one that says which node a row is of, where there is one."""
        return [name, NODE] if NODE in self.names and name != NODE else [name]

    def check_order(self, batch: Any, first_row: int) -> None:
        """Refuse rows that are not in the order of nodes, where a column says which they are of."""
        if NODE not in batch.schema.names:
            return
        nodes = self.values(batch, NODE, first_row)
        is_wrong = nodes != np.arange(first_row, first_row + len(nodes))
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise InvalidInputError(
                f"row {first_row + row} is of node {nodes[row]}",
                where=self.path,
                expected="rows in the order of nodes, 0, 1, 2, ...",
                fix=f"sort the table by its column {NODE!r}",
            )


def is_parquet(path: Path) -> bool:
    """Tell by its name whether a file is Parquet."""
    return path.name.lower().endswith(PARQUET_SUFFIXES)


def is_csv(path: Path) -> bool:
    """Tell by its name whether a file is a table in text."""
    return path.name.lower().endswith(CSV_SUFFIXES)


def is_node_table(path: Path) -> bool:
    """Tell by its name whether a file is a table of nodes: Parquet, Arrow IPC or CSV."""
    return is_table(path) or is_csv(path)


def is_table(path: Path) -> bool:
    """Tell by its name whether a file is Parquet or Arrow IPC."""
    return path.name.lower().endswith(TABLE_SUFFIXES)


def open_table(path: Path) -> Table:
    """Read the schema and the row count of a Parquet, Arrow IPC or CSV file."""
    parts: tuple[int, ...] | None
    with reading(path):
        if path.stat().st_size == 0:
            raise InvalidInputError("the file is empty", where=path, expected="a Parquet or Arrow table")
        if is_parquet(path):
            with _open_parquet(path) as file:
                schema, found = file.schema_arrow, file.metadata
                sizes = [int(found.row_group(index).num_rows) for index in range(found.num_row_groups)]
                parts = tuple(sizes)
        elif is_csv(path):
            with _open_csv(path) as reader:
                schema, sizes, parts = reader.schema, [batch.num_rows for batch in reader], None
        else:
            with _open_ipc(path) as reader:
                schema, sizes = reader.schema, [batch.num_rows for batch in _ipc_batches(reader)]
                parts = tuple(sizes) if hasattr(reader, "get_batch") else None
    dtypes = tuple(_number_dtype(field.type) for field in schema)
    return Table(path, tuple(schema.names), dtypes, tuple(str(field.type) for field in schema), sum(sizes), parts)


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    # pre-buffering would hold whole row groups
    return pq.ParquetFile(str(path), pre_buffer=False, buffer_size=MIB)


def _open_csv(path: Path, as_text: str | None = None) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        str(path),
        read_options=csv.ReadOptions(use_threads=False, block_size=MIB),
        parse_options=csv.ParseOptions(delimiter="," if ".csv" in path.suffixes else "\t"),
        convert_options=csv.ConvertOptions(column_types={} if as_text is None else {as_text: pa.string()}),
    )


def _open_ipc(path: Path) -> Any:
    import pyarrow as pa

    with path.open("rb") as stream:
        is_file = stream.read(6) == b"ARROW1"
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.memory_map(str(path)))


def _ipc_batches(reader: Any, parts: Sequence[int] | None = None) -> Iterator[Any]:
    if hasattr(reader, "get_batch"):
        return (reader.get_batch(index) for index in (range(reader.num_record_batches) if parts is None else parts))
    return iter(reader)


def _number_dtype(arrow_type: Any) -> np.dtype[Any] | None:
    import pyarrow as pa

    if not (pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)):
        return None
    dtype: np.dtype[Any] = np.dtype(arrow_type.to_pandas_dtype())
    return dtype
