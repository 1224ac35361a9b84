"""The memory bank: nodes kept from earlier tasks with their own copy of the rows, so that old data may be gone.

A bank never changes; ``add`` makes a new one. On disk it is one uncompressed Arrow IPC file (``bank.arrow``) that any
Arrow library reads: ``node``, ``task``, ``label``, ``importance``, ``diversity`` and the rows, dense as
``row: fixed_size_list``, sparse as ``index`` and ``value: large_list``. Arrow has no checksums of its own: the schema's
metadata has a crc32c of everything.

Memory: 40 bytes a node and the rows (dense 4 or 2 bytes a column, sparse 8 bytes a node and 8 a value); twice that
while one is added to. Loading reads a mapped file and costs what the bank does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import DurableWriter, atomic_file, crc32c_of, storage_errors
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.features.csr import join_csr, take_csr, to_dense
from ecgl_scale.store.source import CsrBlock

FORMAT = "ecgl_scale.bank"
FORMAT_VERSION = 1
NODE_BYTES = 40
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))
_COLUMNS = ("node", "task", "label", "importance", "diversity")

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]
Rows = NDArray[Any] | CsrBlock


@dataclass(frozen=True, eq=False)
class MemoryBank:
    """Remembered nodes, task by task in the order of the stream, in a task by ascending id."""

    num_features: int
    node_ids: Ids
    """Ids in the user's store."""
    task: Ids
    """Index of the task each node was chosen in."""
    label: Ids
    """Head positions."""
    importance: Scores
    """NaN where not computed, as in ``diversity``."""
    diversity: Scores
    rows: Rows
    """float32 or float16 [n, K], or CSR with uint32 columns and float32 values."""

    @classmethod
    def empty(cls, num_features: int) -> MemoryBank:
        """A bank to begin with; the first rows decide whether they are dense or sparse, and the dtype."""
        if num_features < 1:
            raise UsageError(f"{num_features} features", expected="at least one")
        ids, scores = np.empty(0, np.int64), np.empty(0, np.float64)
        return cls(num_features, ids, ids, ids, scores, scores, np.empty((0, num_features), np.float32))

    def __len__(self) -> int:
        return int(self.node_ids.size)

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are kept sparse."""
        return isinstance(self.rows, CsrBlock)

    @property
    def tasks(self) -> list[int]:
        """The tasks that have nodes here, in order."""
        return [int(task) for task in np.unique(self.task)]

    @property
    def num_bytes(self) -> int:
        """The bytes that the whole bank takes."""
        return sum(array.nbytes for array in (*self._columns().values(), *_arrays_of(self.rows)))

    def _columns(self) -> dict[str, NDArray[Any]]:
        fields = (self.node_ids, self.task, self.label, self.importance, self.diversity)
        return dict(zip(_COLUMNS, fields, strict=True))

    def add(
        self,
        task_index: int,
        node_ids: Any,
        labels: Any,
        rows: Rows,
        importance: Any = None,
        diversity: Any = None,
    ) -> MemoryBank:
        """A bank that has these nodes of a task as well; everything is copied.

        Parameters
        ----------
        task_index
            After the tasks that are in already: a task is added once.
        node_ids
            Ascending.
        labels
            Head positions.
        rows
            float32 or float16 [n, K], or clean CSR as a store gives it; of the kind that the bank has already.
        importance, diversity
            NaN without.

        Raises
        ------
        UsageError
            Anything that does not fit; the bank is as it was.
        """
        last = int(self.task[-1]) if len(self) else -1
        if task_index <= last or task_index < 0:
            raise UsageError(
                f"task {task_index} is to be added after task {last}", expected="each task once, in the stream's order"
            )
        ids = _checked_integers(node_ids, "node_ids", None)
        if ids.size and (ids[0] < 0 or (np.diff(ids) <= 0).any()):
            raise UsageError(f"the node ids of task {task_index} are not in order", expected="ascending ids, from 0")
        positions = _checked_integers(labels, "labels", ids.size)
        if ids.size and positions.min() < 0:
            raise UsageError(
                f"node {ids[np.argmin(positions)]} has no label", expected="a head position for every node in the bank"
            )
        scores = [
            _checked_scores(given, name, ids.size)
            for given, name in ((importance, "importance"), (diversity, "diversity"))
        ]
        _check_rows(rows, ids.size, self.num_features)
        added = (ids, np.full(ids.size, task_index, np.int64), positions, *scores)
        joined = [np.concatenate(pair) for pair in zip(self._columns().values(), added, strict=True)]
        return self._with(joined, self._join(rows))

    def _with(self, columns: list[NDArray[Any]], rows: Rows) -> MemoryBank:
        node_ids, task, label, importance, diversity = columns
        return MemoryBank(self.num_features, node_ids, task, label, importance, diversity, rows)

    def _join(self, rows: Rows) -> Rows:
        own = self.rows
        if not len(self):
            own = _take(rows, np.empty(0, np.int64))  # whatever comes first decides the kind
        if isinstance(own, CsrBlock) and isinstance(rows, CsrBlock):
            return join_csr([own, rows])
        if isinstance(own, CsrBlock) or isinstance(rows, CsrBlock) or own.dtype != rows.dtype:
            raise UsageError(f"these rows are {_kind_of(rows)}", expected=f"{_kind_of(own)}, as in the bank")
        return np.concatenate([own, rows])

    def for_tasks(self, tasks: Iterable[int]) -> MemoryBank:
        """The part of these tasks, a copy; tasks that are not here have no nodes."""
        return self.select(np.flatnonzero(np.isin(self.task, np.array([*tasks], np.int64))))

    def select(self, places: Ids) -> MemoryBank:
        """The nodes at these places, which ascend; a copy."""
        return self._with([column[places] for column in self._columns().values()], _take(self.rows, places))

    def dense_rows(self) -> NDArray[np.float32]:
        """The rows as float32 [n, K]; not a copy where they are that already."""
        if isinstance(self.rows, CsrBlock):
            return to_dense(self.rows, self.num_features)
        return self.rows.astype(np.float32, copy=False)

    def save(self, path: Path) -> None:
        """Write the bank to one file, whole or not at all. Memory: two write buffers."""
        import pyarrow as pa

        columns = {name: as_arrow(column) for name, column in self._columns().items()}
        if isinstance(self.rows, CsrBlock):
            offsets = as_arrow(self.rows.indptr)
            columns["index"] = pa.LargeListArray.from_arrays(offsets, as_arrow(self.rows.indices))
            columns["value"] = pa.LargeListArray.from_arrays(offsets, as_arrow(self.rows.values))
        else:
            columns["row"] = pa.FixedSizeListArray.from_arrays(as_arrow(self.rows.reshape(-1)), self.num_features)
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        batch = batch.replace_schema_metadata({**self._head(), "crc32c": f"{self._crc32c():08x}"})
        with atomic_file(path, needed_bytes=self.num_bytes) as partial, DurableWriter(partial) as writer:
            with pa.ipc.new_file(pa.PythonFile(writer, mode="w"), batch.schema) as arrow:
                arrow.write_batch(batch)
            writer.finish()

    def _head(self) -> dict[str, str]:
        head = {"format": FORMAT, "version": FORMAT_VERSION, "num_features": self.num_features}
        return {name: str(value) for name, value in head.items()} | {"rows": _kind_of(self.rows)}

    def _crc32c(self) -> int:
        """The crc32c of the whole bank: sizes come first, as values alone could be cut into nodes in another way."""
        crc = crc32c_of(json.dumps([self._head(), len(self)], sort_keys=True).encode())
        for array in (*self._columns().values(), *_arrays_of(self.rows)):
            crc = crc32c_of(array, crc) if array.size else crc
        return crc

    @classmethod
    def load(cls, path: Path) -> MemoryBank:
        """Read what ``save`` wrote.

        Raises
        ------
        InvalidInputError
            There is no such file, it is damaged, something else, or of another version.
        """
        import pyarrow as pa

        with storage_errors(path):
            mapped = pa.memory_map(str(path)) if path.stat().st_size else pa.BufferReader(b"")
        try:
            with mapped:
                batch = pa.ipc.open_file(mapped).get_batch(0)
                batch.validate(full=True)
                head = {key.decode(): value.decode() for key, value in (batch.schema.metadata or {}).items()}
                if head.get("format") == FORMAT and head.get("version") != str(FORMAT_VERSION):
                    raise _BankVersionError(head.get("version"))
                bank = cls._of_batch(batch, int(head["num_features"]))
                # The head as it would be written, so that a file with another head is a damaged one.
                is_whole = head == {**bank._head(), "crc32c": f"{bank._crc32c():08x}"}
        except _BankVersionError as error:
            raise InvalidInputError(
                f"a memory bank of format version {error}", where=path, expected=f"version {FORMAT_VERSION}"
            ) from error
        except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise _damaged(path, f"cannot be read: {error}") from error
        if not is_whole:
            raise _damaged(path, "differs from what was written")
        return bank

    @classmethod
    def _of_batch(cls, batch: Any, num_features: int) -> MemoryBank:
        if any(column.null_count for column in batch.columns):
            raise ValueError("it has nulls")
        node, task, label, importance, diversity = (np.array(as_numpy(batch.column(name))) for name in _COLUMNS)
        rows: Rows
        if "row" in batch.schema.names:
            values = np.array(as_numpy(batch.column("row").flatten()))
            rows = values.reshape(batch.num_rows, num_features)
        else:
            index, value = batch.column("index"), batch.column("value")
            if not index.offsets.equals(value.offsets):
                raise ValueError("columns and values have other offsets")
            parts = (index.offsets, index.values, value.values)
            rows = CsrBlock(*(np.array(as_numpy(part)) for part in parts))
        bank = cls(num_features, node, task, label, importance, diversity, rows)
        _check_rows(rows, batch.num_rows, num_features)
        wanted = (np.int64, np.int64, np.int64, np.float64, np.float64)
        if any(column.dtype != dtype for column, dtype in zip(bank._columns().values(), wanted, strict=True)):
            raise ValueError("a column has another type")
        return bank


class _BankVersionError(Exception):
    """The bank is of another version, which is no damage."""


def plan_bank(
    num_nodes: int, num_features: int, *, num_values: int | None = None, itemsize: int = 4, stage: str = "memory bank"
) -> StagePlan:
    """What a bank that has grown to ``num_nodes`` needs, ``num_values`` being the stored values of sparse rows.

    Memory: ``2 * (40 nodes + rows)``, as adding and taking parts copy; rows are ``nodes * columns * itemsize`` dense,
    ``8 nodes + 8 values`` sparse.
    """
    rows = num_nodes * num_features * itemsize if num_values is None else 8 * (num_nodes + 1 + num_values)
    size = NODE_BYTES * num_nodes + rows
    what = f"{num_features:,} columns" if num_values is None else f"{num_values:,} values in all"
    return StagePlan(
        stage,
        2 * size,
        f"twice {num_nodes:,} nodes of {NODE_BYTES} bytes and their rows, {what}",
        written_bytes=size,
        setting="bank.budget",
    )


def _arrays_of(rows: Rows) -> tuple[NDArray[Any], ...]:
    return (rows.indptr, rows.indices, rows.values) if isinstance(rows, CsrBlock) else (rows,)


def _kind_of(rows: Rows) -> str:
    return "sparse float32" if isinstance(rows, CsrBlock) else f"dense {rows.dtype}"


def _take(rows: Rows, places: Ids) -> Rows:
    """A copy of some rows, in ascending order."""
    return take_csr(rows, places) if isinstance(rows, CsrBlock) else rows[places]


def _checked_integers(given: Any, name: str, size: int | None) -> Ids:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu") or size not in (None, array.size):
        expected = "a list of integers" if size is None else f"an integer for each of {size} nodes"
        raise UsageError(f"{name} are {array.dtype} of shape {array.shape}", expected=expected)
    return array.astype(np.int64)


def _checked_scores(given: Any, name: str, size: int) -> Scores:
    array = np.full(size, np.nan) if given is None else np.asarray(given)
    if array.shape != (size,) or (size and array.dtype.kind not in "fiu"):
        raise UsageError(
            f"{name} is {array.dtype} of shape {array.shape}", expected=f"a number for each of {size} nodes"
        )
    return array.astype(np.float64)


def _check_rows(rows: Rows, num_nodes: int, num_features: int) -> None:
    if not isinstance(rows, CsrBlock):
        if rows.shape != (num_nodes, num_features) or rows.dtype not in _DTYPES:
            raise UsageError(
                f"rows are {rows.dtype} of shape {rows.shape}",
                expected=f"float32 or float16 of shape {(num_nodes, num_features)}",
            )
        return
    indptr = rows.indptr
    fits = rows.indices.dtype == np.uint32 and rows.values.dtype == np.float32 and indptr.dtype == np.int64
    fits = fits and indptr.shape == (num_nodes + 1,) and indptr[0] == 0 and bool((np.diff(indptr) >= 0).all())
    fits = fits and indptr[-1] == rows.indices.size == rows.values.size
    if not fits or (rows.indices.size and rows.indices.max() >= num_features):
        raise UsageError(
            f"sparse rows that do not fit: {indptr.size - 1} rows, {rows.indices.size} values",
            expected=f"{num_nodes} rows of int64 offsets, uint32 columns below {num_features} and float32 values",
        )


def _damaged(path: Path, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"the memory bank {what}", where=path, expected="a file written by this program", fix="restore it, or run again"
    )
