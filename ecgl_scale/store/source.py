"""What every source of graphs hands to the builder: edges, features and node columns, all in bounded blocks.

A source is a frozen description plus callables that open streams; calling one again starts it anew, so the
builder may read a stream twice. Nothing here is vertex- or edge-sized unless a source chooses to hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeSource, IntArray
from ecgl_scale.store.row_source import RowSource

if TYPE_CHECKING:
    import pyarrow as pa

FloatArray = NDArray[np.floating[Any]]
AnyArray = NDArray[Any]
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True)
class CsrBlock:
    """Consecutive rows of a sparse matrix; ``indptr`` starts at 0."""

    indptr: NDArray[np.int64]
    indices: IntArray
    values: AnyArray

    @classmethod
    def of_dense(cls, rows: AnyArray) -> CsrBlock:
        """Take the values that are not zero."""
        where, columns = np.nonzero(rows)
        indptr = np.searchsorted(where, np.arange(len(rows) + 1)).astype(np.int64, copy=False)
        return cls(indptr, columns, rows[where, columns])

    @property
    def num_rows(self) -> int:
        """Number of rows, empty ones too."""
        return self.indptr.size - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the three arrays."""
        return self.indptr.nbytes + self.indices.nbytes + self.values.nbytes

    def cut(self, start: int, stop: int) -> CsrBlock:
        """Rows ``start`` up to ``stop``: a copy of their offsets, views of the rest."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        offsets = self.indptr[start : stop + 1] - first
        offsets.setflags(write=self.indptr.flags.writeable)  # or kernels would be compiled for a third mixture
        return CsrBlock(offsets, self.indices[first:last], self.values[first:last])


@dataclass(frozen=True)
class DenseSource:
    """Rows of numbers, streamed."""

    kind: ClassVar[Literal["dense"]] = "dense"
    num_features: int
    dtype: np.dtype[Any]
    origin: str
    blocks: Callable[[int], Iterator[AnyArray]]
    """``blocks(max_rows)`` yields ``[<= max_rows, num_features]`` arrays, in row order."""
    rows: RowSource | None = None
    """Any of the rows by themselves, for other processes; None where they only come in order, or from
    memory."""

    def stored_bytes(self, num_rows: int) -> int:
        """About how many bytes a store of these features takes."""
        return 4 * num_rows * self.num_features


@dataclass(frozen=True)
class SparseSource:
    """Rows of a sparse matrix, streamed."""

    kind: ClassVar[Literal["sparse"]] = "sparse"
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    """What values are stored as."""
    num_features: int
    num_values: int
    origin: str
    blocks: Callable[[int], Iterator[CsrBlock]]
    """``blocks(max_rows)`` yields consecutive rows, at most that many at a time."""
    rows: ClassVar[None] = None
    """They are streamed by one process."""

    def stored_bytes(self, num_rows: int) -> int:
        """About how many bytes a store of these features takes."""
        return 8 * self.num_values + 16 * num_rows


@dataclass(frozen=True)
class ColumnSource:
    """One value a node: ``label`` (-1 = none), ``split`` (0/1/2 = train/valid/test, -1 = none), ``year``, any other."""

    name: str
    dtype: np.dtype[Any]
    origin: str
    blocks: Callable[[int], Iterator[AnyArray]]
    """``blocks(max_rows)`` yields 1-D arrays, in node order."""


@dataclass(frozen=True)
class EdgeHistory:
    """What became of the edges when they were first read, where the source is a store itself."""

    self_loops: str
    """``dropped``, ``kept`` or ``added``."""
    input_edges: int
    dropped_self_loops: int
    dropped_duplicates: int


@dataclass(frozen=True)
class NameSource:
    """One name a node, text or a whole number: its key, or its class in words."""

    name: str
    type: Literal["string", "int64"]
    origin: str
    blocks: Callable[[int], Iterator[pa.Array]]
    """``blocks(max_rows)`` yields arrays of ``type``, with nulls where a value is missing."""
    first_row: int = 0
    """What people call the first row: 0, or its line in a text file."""
    as_written: Callable[[int], Iterator[pa.Array]] | None = None
    """Text that the numbers were read from, where a file has them as text."""

    def where(self, row: int) -> str:
        """The place of row ``row``, counted from 0, for messages."""
        return f"{self.origin}, row {self.first_row + row}"


AnyColumn = ColumnSource | NameSource


@dataclass(frozen=True)
class GraphSource:
    """A whole graph to be built into a store."""

    name: str
    num_nodes: int
    num_edges_hint: int
    """Edges that will come: exact where known, else an estimate; plans scratch space and block sizes."""
    edges: EdgeSource
    features: DenseSource | SparseSource | None = None
    columns: tuple[AnyColumn, ...] = ()
    """Numbers; only ``label`` may be of words, and what ``id_column`` names are keys."""
    id_column: str | None = None
    """Which of the columns has the keys of the nodes; None where they have none."""
    num_classes: int | None = None
    """How many classes there must be, where the source knows it (OGB's table); else taken from the labels."""
    is_part: bool = False
    """Part of a larger graph, whose label ids it keeps: some of the ``num_classes`` classes may have no node here."""
    class_names: tuple[str, ...] | None = None
    """Names of the ``num_classes`` classes, where labels are class numbers already and have names."""
    provenance: Mapping[str, Json] = field(default_factory=dict)
    """Goes into the manifest: where the graph came from, with which settings."""
    history: EdgeHistory | None = None
    """The manifest repeats it, in place of what this build finds."""

    @property
    def number_columns(self) -> tuple[ColumnSource, ...]:
        """The columns that are stored as they come; words, but for keys, are refused."""
        for column in self.columns:
            if isinstance(column, NameSource) and column.name != self.id_column:
                raise InvalidInputError(f"column {column.name!r} is text", where=column.origin, expected="numbers")
        return tuple(column for column in self.columns if isinstance(column, ColumnSource))

    @property
    def keys(self) -> NameSource | None:
        """The column with the keys of the nodes; None where they have none, or there are no nodes."""
        if self.id_column is None or not self.num_nodes:
            return None
        for column in self.columns:
            if isinstance(column, NameSource) and column.name == self.id_column:
                return column
        there = ", ".join(column.name for column in self.columns) or "none"
        raise InvalidInputError(
            f"there is no column {self.id_column!r} of keys", where=self.name, expected=f"one of the columns: {there}"
        )
