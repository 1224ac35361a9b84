"""A graph in one .npz file, streamed: ``edge_index``, ``num_nodes``, ``y``, ``x`` or CSR parts, node columns.

Memory is one block of each stream being read; no array is ever whole in memory, except ``x`` in Fortran order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import (
    AnyColumn,
    CsrBlock,
    DenseSource,
    GraphSource,
    SparseSource,
)
from ecgl_scale.store.sources.arrays import no_edges
from ecgl_scale.store.sources.names import npz_names
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
from ecgl_scale.store.sources.npy import NpzFile, open_npz
from ecgl_scale.store.sources.npy_edges import npy_edges

CSR_PARTS = ("x_data", "x_indices", "x_indptr", "x_shape")
LABEL_KEYS = ("y", "label")
RESERVED = frozenset({"edge_index", "num_nodes", "x", *CSR_PARTS, *LABEL_KEYS})


def open_npz_source(
    path: Path, columns: Path | None = None, id_column: str | None = None, *, adds: bool = False
) -> GraphSource:
    """Describe the graph of an .npz file, with further node columns from a second one; one may have the keys.

    With ``adds`` it comes to a graph that is there: its nodes are new ones, and it may have no edges, or no nodes.
    """
    file = open_npz(path)
    has_edges = not adds or "edge_index" in file.members
    num_edges = _check_edges(file) if has_edges else 0
    num_nodes = _num_nodes(file, adds=adds)
    labels = [key for key in LABEL_KEYS if key in file.members]
    if len(labels) > 1:
        raise InvalidInputError("the file has both y and label", where=file.path, fix="remove one of them")
    others = [key for key in file.members if key not in RESERVED]
    # names of nodes and the like sit beside the numbers in many files; they are no columns of ours
    taken = [
        key
        for key in others
        if key == id_column or (file.members[key].shape == (num_nodes,) and file.members[key].dtype.kind in "biuf")
    ]
    more = [] if columns is None else npz_columns(columns, num_nodes, id_column)
    return GraphSource(
        name=file.path.stem,
        num_nodes=num_nodes,
        num_edges_hint=num_edges,
        edges=npy_edges(file, "edge_index") if has_edges else no_edges(str(file.path)),
        features=_features(file, num_nodes),
        columns=join_columns(_columns(file, [*labels, *taken], num_nodes, id_column), more),
        id_column=id_column,
        provenance={
            "kind": "npz",
            "path": str(file.path),
            "columns": None if columns is None else str(columns),
            "ignored": [key for key in others if key not in taken],
        },
    )


def npz_columns(path: Path, num_nodes: int, id_column: str | None = None) -> list[AnyColumn]:
    """Describe every array of an .npz file as a node column; each must have one number a node, but for the keys."""
    file = open_npz(path)
    return list(_columns(file, file.members, num_nodes, id_column))


def _columns(file: NpzFile, names: Iterable[str], num_nodes: int, id_column: str | None) -> Iterator[AnyColumn]:
    for key in names:
        header = file.members[key]
        if key == id_column:
            check_rows(header.shape, num_nodes, f"column {key!r}", file.where(key))
            yield npz_names(key, file)
            continue
        blocks = partial(file.blocks, key)
        yield node_column(key, header.shape, header.dtype, num_nodes, origin=file.where(key), blocks=blocks)


def _num_nodes(file: NpzFile, *, adds: bool) -> int:
    if "num_nodes" in file.members:
        header = file.members["num_nodes"]
        check_integers(header.dtype, "num_nodes", file.where("num_nodes"))
        if header.size != 1:
            raise InvalidInputError(
                f"num_nodes has shape {header.shape}", where=file.where("num_nodes"), expected="a single integer"
            )
        num_nodes = int(file.load("num_nodes").reshape(-1)[0])
        if num_nodes < 0:
            raise InvalidInputError(f"num_nodes is {num_nodes}", where=file.where("num_nodes"), expected="0 or more")
        return num_nodes
    if "x_shape" in file.members:
        return _csr_shape(file)[0]
    for key in ("x", *LABEL_KEYS):
        if key in file.members and file.members[key].shape:
            return file.members[key].shape[0]
    if adds:
        return 0
    raise InvalidInputError(
        "the number of nodes is not known", where=file.path, fix="add num_nodes, x or y to the file"
    )


def _check_edges(file: NpzFile) -> int:
    header = file.header("edge_index")
    where = file.where("edge_index")
    if len(header.shape) != 2 or header.shape[0] != 2:
        raise InvalidInputError(
            f"edge_index has shape {header.shape}", where=where, expected="(2, E)", fix="transpose pairs with .T"
        )
    check_integers(header.dtype, "edge ids", where)
    return header.shape[1]


def _features(file: NpzFile, num_nodes: int) -> DenseSource | SparseSource | None:
    parts = [key for key in CSR_PARTS if key in file.members]
    if parts and "x" in file.members:
        raise InvalidInputError(f"the file has features twice, as x and as {parts[0]}", where=file.path)
    if "x" in file.members:
        header = file.members["x"]
        check_features(header.shape, header.dtype, num_nodes, file.where("x"))
        return DenseSource(header.shape[1], header.dtype, file.where("x"), partial(file.blocks, "x"))
    if not parts:
        return None
    num_rows, num_features = _csr_shape(file)
    check_rows((num_rows, num_features), num_nodes, "the feature matrix", file.where("x_shape"))
    values, indices, indptr = (file.header(key) for key in CSR_PARTS[:3])
    check_numbers(values.dtype, "features", file.where("x_data"))
    check_integers(indices.dtype, "feature numbers", file.where("x_indices"))
    check_integers(indptr.dtype, "row offsets", file.where("x_indptr"))
    if len(values.shape) != 1 or values.shape != indices.shape:
        raise InvalidInputError(
            f"x_data and x_indices have shapes {values.shape} and {indices.shape}",
            where=file.path,
            expected="one dimension, equally long",
        )
    if indptr.shape != (num_rows + 1,):
        raise InvalidInputError(
            f"x_indptr has shape {indptr.shape}", where=file.where("x_indptr"), expected=f"({num_rows + 1},)"
        )
    return SparseSource(num_features, values.size, file.where("x_data"), partial(_csr_blocks, file, num_features))


def _csr_shape(file: NpzFile) -> tuple[int, int]:
    where = file.where("x_shape")
    header = file.members["x_shape"] if "x_shape" in file.members else file.header("x_shape")
    check_integers(header.dtype, "the numbers of x_shape", where)
    if header.shape != (2,):
        raise InvalidInputError(f"x_shape has shape {header.shape}", where=where, expected="two integers")
    num_rows, num_features = (int(length) for length in file.load("x_shape"))
    if num_rows < 0 or num_features < 0:
        raise InvalidInputError(f"x_shape is ({num_rows}, {num_features})", where=where, expected="0 or more")
    return num_rows, num_features


def _csr_blocks(file: NpzFile, num_features: int, max_rows: int) -> Iterator[CsrBlock]:
    num_rows = file.members["x_indptr"].size - 1
    num_values = file.members["x_data"].size
    where = file.where("x_indptr")
    with file.cursor("x_indptr") as rows, file.cursor("x_indices") as indices, file.cursor("x_data") as values:
        last = rows.take(1).astype(np.int64)
        if last[0] != 0:
            raise InvalidInputError(f"x_indptr starts at {last[0]}", where=where, expected="0")
        for first in range(0, num_rows, max(1, max_rows)):
            count = min(max(1, max_rows), num_rows - first)
            offsets = np.concatenate([last, rows.take(count).astype(np.int64)])
            last = offsets[-1:]
            check_csr_rows(offsets, num_features, where, first)
            if last[0] > num_values:
                raise InvalidInputError(f"x_indptr runs to {last[0]}", where=where, expected=f"at most {num_values}")
            count = int(offsets[-1] - offsets[0])
            numbers = indices.take(count)
            check_csr_indices(numbers, num_features, file.where("x_indices"), first)
            yield CsrBlock(offsets - offsets[0], numbers, values.take(count))
    if last[0] != num_values:
        raise InvalidInputError(f"x_indptr ends at {last[0]}", where=where, expected=str(num_values))
