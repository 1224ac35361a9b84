"""Node columns: one value a node, in one uncompressed Arrow IPC file of record batches of ``BATCH_ROWS``.

``label`` is int32 with -1 for none, ``split`` int8 with 0/1/2 = train/valid/test and -1 for none; others as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import DurableWriter, WrittenFile
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.checked import corrupt
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.ragged import map_checked
from ecgl_scale.store.source import ColumnSource

BATCH_ROWS = 1 << 20
MAX_CLASSES = 1 << 20
LABEL, SPLIT = "label", "split"
_STORED_AS: dict[str, np.dtype[Any]] = {LABEL: np.dtype(np.int32), SPLIT: np.dtype(np.int8)}


@dataclass(frozen=True)
class WrittenColumns:
    """The file, the columns' types and the number of classes (None without labels)."""

    file: WrittenFile
    types: dict[str, str]
    num_classes: int | None


def write_columns(
    path: Path,
    columns: tuple[ColumnSource, ...],
    num_nodes: int,
    *,
    num_classes: int | None,
    may_lack_classes: bool = False,
    known_classes: int = 0,
    batch_rows: int = BATCH_ROWS,
    on_rows: Callable[[int], None],
) -> WrittenColumns:
    """Stream all columns side by side into one file and check them. Memory: a batch of every column, twice.

    The first ``known_classes`` classes have nodes elsewhere, and need none here.
    """
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise InvalidInputError(f"two node columns have the same name: {sorted(names)}")
    dtypes: list[np.dtype[Any]] = [_STORED_AS.get(column.name, column.dtype) for column in columns]
    schema = pa.schema(
        [pa.field(name, _arrow_type(column, dtype)) for name, column, dtype in zip(names, columns, dtypes, strict=True)]
    )
    class_counts = _ClassCounts()
    streams = [_exact_batches(column, num_nodes, batch_rows) for column in columns]
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema.with_metadata({"ecgl.version": "1"})) as writer:
            for start in range(0, num_nodes, batch_rows):
                arrays = []
                for column, dtype, stream in zip(columns, dtypes, streams, strict=True):
                    values = _checked_cast(next(stream), dtype, column, start)
                    if column.name == LABEL:
                        class_counts.add(values, column, start)
                    arrays.append(as_arrow(values))
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                on_rows(min(batch_rows, num_nodes - start))
            for stream in streams:
                next(stream, None)  # lets it see that nothing is left
        file = sink.finish()
    label = next((column for column in columns if column.name == LABEL), None)
    found = None if label is None else class_counts.finish(label, num_classes, may_lack_classes, known_classes)
    return WrittenColumns(file, {field.name: str(field.type) for field in schema}, found)


class NodeColumns:
    """The node columns of an open store."""

    def __init__(
        self,
        files: StoreFiles,
        expected: Mapping[str, WrittenFile],
        types: dict[str, str],
        dropped: Dropped | None = None,
    ) -> None:
        """``expected`` are the files of the columns, one after the other: that of each generation with new rows."""
        self._files = files
        self._expected = expected
        self.types = types
        self._checked: set[str] = set()
        self._dropped = dropped

    @property
    def names(self) -> list[str]:
        """The columns there are."""
        return list(self.types)

    def column(self, name: str) -> NDArray[Any]:
        """All values of one column. Memory: the column."""
        parts = [values for _, values in self.blocks(name)]
        return np.concatenate(parts) if parts else np.empty(0)

    def blocks(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """First row and values of each batch, as views of the mapped file."""
        if name not in self.types:
            where = self._files.location / next(iter(self._expected))
            raise UsageError(f"the store has no node column {name!r}", where=where, expected=f"one of {self.names}")
        start = 0
        for file, expected in self._expected.items():
            path = self._files.path(file)
            mapped = map_checked(path, expected, check_crc=file not in self._checked)
            self._checked.add(file)
            try:
                reader = pa.ipc.open_file(mapped)
            except pa.ArrowException as error:
                raise corrupt(path, f"is not an Arrow file: {error}") from error
            for index in range(reader.num_record_batches):
                column = reader.get_batch(index).column(name)
                values = as_numpy(column)
                yield start, self._live(name, start, values)
                start += len(column)

    def _live(self, name: str, start: int, values: NDArray[Any]) -> NDArray[Any]:
        """The values, but for nodes that were dropped: they have no label, and no place in a split."""
        if self._dropped is None or name not in _STORED_AS:
            return values
        gone = self._dropped.within(start, start + values.size)
        if gone.size:
            values = values.copy()
            values[gone] = -1
        return values


class _ClassCounts:
    """Which labels occur."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def add(self, labels: NDArray[Any], column: ColumnSource, first_row: int) -> None:
        outside = (labels < -1) | (labels >= MAX_CLASSES)
        if outside.any():
            row = int(np.argmax(outside))
            raise InvalidInputError(
                f"label {labels[row]} is not a class",
                where=f"{column.origin}, row {first_row + row}",
                expected=f"-1 for no label, or a class from 0 to {MAX_CLASSES - 1:,}",
            )
        counts = np.bincount(labels[labels >= 0], minlength=self._counts.size)
        counts[: self._counts.size] += self._counts
        self._counts = counts

    def finish(self, column: ColumnSource, num_classes: int | None, may_lack_classes: bool, known_classes: int) -> int:
        found = max(int(self._counts.size), known_classes)
        wanted = found if num_classes is None else num_classes
        empty = known_classes + np.flatnonzero(self._counts[known_classes:wanted] == 0)
        if found > wanted:
            raise InvalidInputError(f"label {found - 1} is not one of the {wanted} classes", where=column.origin)
        if may_lack_classes:
            return wanted
        if empty.size or found < wanted:
            missing = int(empty[0]) if empty.size else found
            raise InvalidInputError(
                f"class {missing} has no node",
                where=column.origin,
                expected=f"at least one node in each class from 0 to {wanted - 1}",
                fix="number the classes without gaps",
            )
        return found


def _arrow_type(column: ColumnSource, dtype: np.dtype[Any]) -> pa.DataType:
    if dtype.kind not in "iufb" or dtype.itemsize > 8:
        raise InvalidInputError(
            f"node column {column.name!r} has dtype {dtype}",
            where=column.origin,
            expected="integers, floats or booleans",
        )
    return pa.from_numpy_dtype(dtype.newbyteorder("="))


def _checked_cast(values: NDArray[Any], dtype: np.dtype[Any], column: ColumnSource, first_row: int) -> NDArray[Any]:
    if values.dtype.kind not in "iufb":
        raise InvalidInputError(
            f"node column {column.name!r} has dtype {values.dtype}",
            where=column.origin,
            expected="integers, floats or booleans",
        )
    if column.name not in _STORED_AS:
        return np.ascontiguousarray(values, dtype.newbyteorder("="))
    with np.errstate(invalid="ignore"):
        cast = values.astype(dtype)
    wrong = cast != values
    if column.name == SPLIT:
        wrong |= (cast < -1) | (cast > 2)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = "-1, 0 (train), 1 (valid) or 2 (test)" if column.name == SPLIT else "whole numbers below 2^31"
        raise InvalidInputError(
            f"{column.name} {values[row]} cannot be stored",
            where=f"{column.origin}, row {first_row + row}",
            expected=expected,
        )
    return cast


def _exact_batches(column: ColumnSource, num_nodes: int, batch_rows: int) -> Iterator[NDArray[Any]]:
    """Re-cut a column's blocks into batches of exactly ``batch_rows`` (the last one shorter) and check the total."""
    held: list[NDArray[Any]] = []
    held_rows = seen = 0
    for block in column.blocks(batch_rows):
        if block.ndim != 1:
            raise InvalidInputError(
                f"node column {column.name!r} has shape {block.shape}", where=column.origin, expected="one value a node"
            )
        seen += block.size
        if seen > num_nodes:
            break
        held.append(block)
        held_rows += block.size
        while held_rows >= batch_rows:
            whole = held[0] if len(held) == 1 else np.concatenate(held)
            yield whole[:batch_rows]
            held = [whole[batch_rows:]]
            held_rows -= batch_rows
    if seen != num_nodes:
        more = "more than " if seen > num_nodes else ""
        raise InvalidInputError(
            f"node column {column.name!r} has {more}{min(seen, num_nodes):,} values",
            where=column.origin,
            expected=f"{num_nodes:,}, one a node",
        )
    if held_rows:
        yield np.concatenate(held)
