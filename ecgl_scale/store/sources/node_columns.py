"""Checks that every source shares: node columns, labels, row counts and sparse rows. Costs nothing but the block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import IntArray
from ecgl_scale.store.source import AnyArray, AnyColumn, ColumnSource
from ecgl_scale.store.sources.names import numpy_names

Blocks = Callable[[int], Iterator[AnyArray]]

LABEL = "label"


def check_rows(shape: tuple[int, ...], num_nodes: int, what: str, origin: object) -> None:
    """Refuse an array whose first dimension is not the number of nodes."""
    if not shape or shape[0] != num_nodes:
        raise InvalidInputError(
            f"{what} has shape {shape}, but the graph has {num_nodes} nodes",
            where=origin,
            expected=f"shape ({num_nodes}{', K' if len(shape) > 1 else ','})",
        )


def check_features(shape: tuple[int, ...], dtype: np.dtype[Any], num_nodes: int, origin: object) -> None:
    """Refuse features that are not one row of numbers a node."""
    if len(shape) != 2:
        raise InvalidInputError(
            f"features have shape {shape}", where=origin, expected=f"two dimensions, ({num_nodes}, K)"
        )
    check_rows(shape, num_nodes, "the feature matrix", origin)
    check_numbers(dtype, "features", origin)


def check_numbers(dtype: np.dtype[Any], what: str, origin: object) -> None:
    """Refuse a dtype other than integers, floats and bool."""
    if dtype.kind in "SU":
        raise InvalidInputError(
            f"{what} are strings ({dtype})", where=origin, expected="numbers", fix="number the distinct values"
        )
    if dtype.kind not in "biuf":
        raise InvalidInputError(f"{what} have dtype {dtype}", where=origin, expected="integers, floats or bool")


def check_integers(dtype: np.dtype[Any], what: str, origin: object) -> None:
    """Refuse a dtype other than an integer one."""
    if dtype.kind not in "iu":
        raise InvalidInputError(f"{what} have dtype {dtype}", where=origin, expected="integers")


def node_column(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], num_nodes: int, *, origin: str, blocks: Blocks
) -> AnyColumn:
    """Check a column and describe it; ``y`` and ``label`` become labels, which may be words."""
    if name in ("y", LABEL):
        return _label_column(shape, dtype, num_nodes, origin, blocks)
    if len(shape) != 1:
        raise InvalidInputError(f"column {name!r} has shape {shape}", where=origin, expected=f"({num_nodes},)")
    check_rows(shape, num_nodes, f"column {name!r}", origin)
    check_numbers(dtype, f"the values of column {name!r}", origin)
    return ColumnSource(name, dtype, origin, blocks)


def _label_column(
    shape: tuple[int, ...], dtype: np.dtype[Any], num_nodes: int, origin: str, blocks: Blocks
) -> AnyColumn:
    if len(shape) != 1 and shape[1:] != (1,):
        raise InvalidInputError(f"labels have shape {shape}", where=origin, expected=f"one a node, ({num_nodes},)")
    check_rows(shape, num_nodes, "the label array", origin)
    if dtype.kind in "US":
        return numpy_names(LABEL, shape, dtype, origin, blocks)
    check_numbers(dtype, "labels", origin)
    label_dtype = dtype if dtype.kind in "iu" else np.dtype(np.int8 if dtype.kind == "b" else np.int64)

    def convert(max_rows: int) -> Iterator[AnyArray]:
        first_row = 0
        for block in blocks(max_rows):
            values = block.reshape(-1)
            if dtype.kind == "f":
                values = _whole_labels(values, origin, first_row)
            yield values.astype(label_dtype, copy=False)
            first_row += len(values)

    return ColumnSource(LABEL, label_dtype, origin, convert)


def _whole_labels(values: AnyArray, origin: str, first_row: int) -> NDArray[np.int64]:
    missing = np.isnan(values)
    bad = ~missing & ((values != np.floor(values)) | (np.abs(values) > 2**53))
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInputError(
            f"label {values[row]} is not a whole number",
            where=f"{origin}, row {first_row + row}",
            expected="a class number; -1 or NaN for none",
        )
    return np.where(missing, -1, values).astype(np.int64)


def join_columns(*groups: Iterable[AnyColumn]) -> tuple[AnyColumn, ...]:
    """Put columns of several files together; two of one name are refused."""
    columns: dict[str, AnyColumn] = {}
    for column in (column for group in groups for column in group):
        if column.name in columns:
            raise InvalidInputError(
                f"there are two columns named {column.name!r}",
                where=f"{columns[column.name].origin} and {column.origin}",
                fix="rename or remove one",
            )
        columns[column.name] = column
    return tuple(columns.values())


def check_csr_rows(indptr: NDArray[np.int64], num_features: int, origin: str, first_row: int) -> None:
    """Refuse row offsets that go back, or rows with more values than there are features."""
    counts = np.diff(indptr)
    bad = (counts < 0) | (counts > num_features)
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInputError(
            f"a sparse row has {counts[row]} values",
            where=f"{origin}, row {first_row + row}",
            expected=f"0 to {num_features}, each feature once",
        )


def check_csr_indices(indices: IntArray, num_features: int, origin: str, first_row: int) -> None:
    """Refuse feature numbers out of range."""
    if indices.size and (indices.min() < 0 or indices.max() >= num_features):
        raise InvalidInputError(
            f"feature numbers run from {indices.min()} to {indices.max()}",
            where=f"{origin}, rows from {first_row} on",
            expected=f"0 to {num_features - 1}",
        )
