"""A graph held in memory: numpy arrays, torch tensors on any device, scipy sparse features. Blocks are views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, IntArray
from ecgl_scale.store.source import (
    AnyArray,
    AnyColumn,
    CsrBlock,
    DenseSource,
    GraphSource,
    SparseSource,
)
from ecgl_scale.store.sources.names import as_words, words_column
from ecgl_scale.store.sources.node_columns import (
    check_csr_indices,
    check_csr_rows,
    check_features,
    check_integers,
    check_numbers,
    check_rows,
    join_columns,
    node_column,
)


def array_source(
    edge_index: Any = None,
    *,
    x: Any = None,
    y: Any = None,
    num_nodes: int | None = None,
    columns: Mapping[str, Any] | None = None,
    name: str = "arrays",
    adds: bool = False,
) -> GraphSource:
    """Describe a graph held in memory.

    Parameters
    ----------
    edge_index
        Integers [2, E], or a pair (src, dst) of equally long arrays; None for no edges.
    x
        Features [N, K]: an array, a tensor, or a scipy sparse matrix.
    y
        One label a node, a number or a word; -1, NaN or None where there is none.
    num_nodes
        Taken from ``x``, ``y`` or ``columns`` if not given.
    columns
        Further arrays of one value a node.
    adds
        The nodes come to a graph that is there; where nothing tells how many, there are none.
    """
    src, dst = _edge_rows(np.empty((2, 0), np.int64) if edge_index is None else edge_index, name)
    sparse = x.tocsr() if hasattr(x, "tocsr") else None
    dense = None if x is None or sparse is not None else to_numpy(x, f"{name}: x")
    arrays = {key: to_numpy(values, f"{name}: {key}") for key, values in (columns or {}).items()}
    labels: list[AnyColumn] = []
    if y is not None:
        if arrays.keys() & {"y", "label"}:
            raise InvalidInputError("labels are given twice, as y and among the columns", where=name)
        if (words := as_words(y)) is not None:
            labels, num_nodes = [words_column("label", words, f"{name}: y")], num_nodes or len(words)
        else:
            arrays = {"label": to_numpy(y, f"{name}: y")} | arrays
    if num_nodes is None:
        num_nodes = _infer_num_nodes([sparse, dense, *arrays.values()], name, adds=adds)
    return GraphSource(
        name=name,
        num_nodes=num_nodes,
        num_edges_hint=len(src),
        edges=ArrayEdges(src, dst, f"{name}: edge_index"),
        features=_features(sparse, dense, num_nodes, f"{name}: x"),
        columns=join_columns(labels, (_column(key, array, num_nodes, name) for key, array in arrays.items())),
        provenance={"kind": "arrays"},
    )


def to_numpy(values: Any, origin: str) -> AnyArray:
    """See an array-like as numpy, without a copy where it is already in host memory; object arrays are refused."""
    try:
        for method in ("detach", "cpu", "numpy"):
            if hasattr(values, method):
                values = getattr(values, method)()
        array: AnyArray = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"this cannot be seen as an array: {error}", where=origin) from error
    if array.dtype.hasobject or array.dtype.names:
        raise InvalidInputError(f"the array has dtype {array.dtype}", where=origin, expected="plain numbers")
    return array


def _edge_rows(edge_index: Any, name: str) -> tuple[IntArray, IntArray]:
    origin = f"{name}: edge_index"
    if isinstance(edge_index, tuple | list) and len(edge_index) == 2:
        src, dst = (to_numpy(row, origin) for row in edge_index)
        if src.ndim != 1 or src.shape != dst.shape:
            raise InvalidInputError(
                f"src and dst have shapes {src.shape} and {dst.shape}", where=origin, expected="two of (E,)"
            )
        both = [src, dst]
    else:
        array = to_numpy(edge_index, origin)
        if array.ndim != 2 or array.shape[0] != 2:
            raise InvalidInputError(
                f"edge_index has shape {array.shape}", where=origin, expected="(2, E)", fix="transpose pairs with .T"
            )
        both = [array[0], array[1]]
    for row in both:
        # an empty Python list has no integers in it to show
        if row.size:
            check_integers(row.dtype, "edge ids", origin)
    return (both[0], both[1]) if both[0].size else (both[0].astype(np.int64), both[1].astype(np.int64))


def no_edges(origin: str) -> ArrayEdges:
    """The edges of a source that has only nodes."""
    return ArrayEdges(np.empty(0, np.int64), np.empty(0, np.int64), origin)


def _infer_num_nodes(candidates: list[Any], name: str, *, adds: bool) -> int:
    for candidate in candidates:
        if candidate is not None and candidate.shape:
            return int(candidate.shape[0])
    if adds:
        return 0
    raise InvalidInputError("the number of nodes is not known", where=name, fix="give num_nodes, x or y")


@dataclass(frozen=True, eq=False)
class ArrayEdges(EdgeSource):
    """Edges in memory, which only this process has."""

    src: IntArray
    dst: IntArray
    origin: str

    def cut(self, max_edges: int) -> list[Block]:
        """Any edges can be read by themselves."""
        return split_blocks(len(self.src), max_edges)

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Slice the arrays, without a copy."""
        return EdgeBlock(self.src[start:stop], self.dst[start:stop], self.origin, start)


def _column(key: str, array: AnyArray, num_nodes: int, name: str) -> AnyColumn:
    blocks = partial(row_blocks, array)
    return node_column(key, array.shape, array.dtype, num_nodes, origin=f"{name}: {key}", blocks=blocks)


def row_blocks(array: AnyArray, max_rows: int) -> Iterator[AnyArray]:
    """Slice an array along its first axis."""
    for first in range(0, len(array), max(1, max_rows)):
        yield array[first : first + max(1, max_rows)]


def _features(sparse: Any, dense: AnyArray | None, num_nodes: int, origin: str) -> DenseSource | SparseSource | None:
    if dense is not None:
        check_features(dense.shape, dense.dtype, num_nodes, origin)
        return DenseSource(dense.shape[1], dense.dtype, origin, partial(row_blocks, dense))
    if sparse is None:
        return None
    check_rows(sparse.shape, num_nodes, "the feature matrix", origin)
    check_numbers(sparse.dtype, "features", origin)
    return SparseSource(int(sparse.shape[1]), int(sparse.indptr[-1]), origin, partial(_csr_blocks, sparse, origin))


def _csr_blocks(matrix: Any, origin: str, max_rows: int) -> Iterator[CsrBlock]:
    num_rows, num_features = matrix.shape
    for first in range(0, num_rows, max(1, max_rows)):
        offsets = np.asarray(matrix.indptr[first : first + max(1, max_rows) + 1], np.int64)
        check_csr_rows(offsets, num_features, origin, first)
        part = slice(offsets[0], offsets[-1])
        check_csr_indices(matrix.indices[part], num_features, origin, first)
        yield CsrBlock(offsets - offsets[0], matrix.indices[part], matrix.data[part])
