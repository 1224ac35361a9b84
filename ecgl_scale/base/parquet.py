"""Columns of numbers as one Parquet file, batch by batch, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import DTypeLike, NDArray

from ecgl_scale.base.durable import fsync_directory, storage_errors

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
    """Write ``batches``, each an array a column, to a temporary file that then takes the name ``path``.

    ``repeated`` columns have few distinct values and are kept as a dictionary of them: for a column whose values are
    hardly there twice that would be 60 MiB for nothing. Memory: a batch, a few times.
    """
    schema = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name, dtype in columns.items()], metadata)
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path, needed_bytes=needed_bytes):
        try:
            with partial.open("wb") as file:
                with pq.ParquetWriter(file, schema, use_dictionary=list(repeated) or False) as writer:
                    for batch in batches:
                        arrays = [_as_arrow(*pair) for pair in zip(batch, columns.values(), strict=True)]
                        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            fsync_directory(path.absolute().parent)
        finally:
            partial.unlink(missing_ok=True)


def _as_arrow(column: NDArray[Any], dtype: DTypeLike) -> pa.Array:
    """Wrap a column without a copy, and without ``pyarrow.array``, which imports pandas where it can: 30 MiB."""
    values = np.ascontiguousarray(column, dtype)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])
