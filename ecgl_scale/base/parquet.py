"""Tables as Parquet files, batch by batch, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import DTypeLike, NDArray

from ecgl_scale.base.arrow import as_arrow
from ecgl_scale.base.durable import atomic_file

ROWS_AT_ONCE = 1 << 20
"""Rows that callers give as a batch."""


def write_parquet(
    path: Path,
    columns: Mapping[str, DTypeLike],
    batches: Iterable[Sequence[NDArray[Any]]],
    *,
    repeated: Sequence[str] = (),
    metadata: Mapping[bytes, bytes] | None = None,
    needed_bytes: int | None = None,
) -> None:
    """Write columns of numbers from ``batches``, each an array a column.

    ``repeated`` columns have few distinct values and are kept as a dictionary of them: for a column whose values are
    hardly there twice that would be 60 MiB for nothing. Memory: a batch, a few times.
    """
    schema = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name, dtype in columns.items()], metadata)
    tables = (
        pa.Table.from_arrays([as_arrow(*pair) for pair in zip(batch, columns.values(), strict=True)], schema=schema)
        for batch in batches
    )
    write_tables(path, schema, tables, repeated=repeated, needed_bytes=needed_bytes)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, or some columns, without ``pyarrow.parquet.read_table``, which imports pandas where it can."""
    with pq.ParquetFile(path) as file:
        return file.read(None if columns is None else list(columns))


def write_tables(
    path: Path,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    *,
    repeated: Sequence[str] = (),
    needed_bytes: int | None = None,
) -> None:
    """Write Arrow tables, which may hold text and nulls, one after the other, whole or not at all."""
    with (
        atomic_file(path, needed_bytes=needed_bytes) as partial,
        partial.open("wb") as file,  # ours and not Arrow's, whose errors do not say that a disk is full
        pq.ParquetWriter(file, schema, use_dictionary=list(repeated) or False) as writer,
    ):
        for table in tables:
            writer.write_table(table)
