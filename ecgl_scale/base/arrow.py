"""Columns between numpy and Arrow without a copy, and without pandas.

``pyarrow.array`` and ``Array.to_numpy`` import pandas where it is installed: 30 MiB and a third of a second of every
command, for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray


def as_arrow(column: NDArray[Any], dtype: DTypeLike | None = None) -> pa.Array:
    """Wrap a column without a copy; one of truth values, which Arrow has as bits, is packed."""
    values = np.ascontiguousarray(column, dtype)
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(data)])


def as_numpy(column: pa.Array) -> NDArray[Any]:
    """View a column of numbers, read-only; truth values are unpacked.

    Raises
    ------
    pa.ArrowInvalid
        It has nulls.
    """
    kind = column.type
    is_bool = pa.types.is_boolean(kind)
    if not (is_bool or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return found
    if column.null_count:
        raise pa.ArrowInvalid(f"a column has {column.null_count} nulls")
    dtype, data, first = np.dtype(kind.to_pandas_dtype()), column.buffers()[1], column.offset
    if not len(column) or data is None:
        values = np.empty(0, dtype)
    elif is_bool:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=first + len(column), bitorder="little")
        values = bits[first:].view(np.bool_)
    else:
        values = np.frombuffer(data, dtype, len(column), first * dtype.itemsize)
    values.flags.writeable = False
    return values


def texts_as_arrow(texts: Sequence[str | None]) -> pa.Array:
    """A column of a few texts, of which some may be missing."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    is_there = np.array([text is not None for text in texts], np.bool_)
    present = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)), present)


def numbers_as_arrow(numbers: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    """A column of a few numbers, of which some may be missing."""
    is_there = np.array([number is not None for number in numbers], np.bool_)
    values = np.array([0 if number is None else number for number in numbers], kind.to_pandas_dtype())
    present = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [present, pa.py_buffer(values)])
