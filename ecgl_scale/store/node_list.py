"""Nodes that a user names in a file, by row number or by key: the nodes to predict, to forget or to drop.

.npy              one number or text a node
.txt              one a line
.csv, .tsv        a single column, or one whose name is in the first row: that of the keys, ``node`` or ``key``
Parquet, Arrow    the same
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.source import NameSource
from ecgl_scale.store.sources.names import npy_names, table_names, text_names
from ecgl_scale.store.sources.npy import open_npy, reading
from ecgl_scale.store.sources.tables import is_table, open_table

if TYPE_CHECKING:
    from ecgl_scale.store.graph import GraphStore

BLOCK_ROWS = 1 << 16
NODE_COLUMNS = ("node", "key")
TEXT_SUFFIXES = (".txt", ".csv", ".tsv")


def read_node_list(path: Path, graph: GraphStore, by_key: bool) -> NDArray[np.int64]:
    """The rows of the nodes that ``path`` names, each once, in ascending order.

    Raises
    ------
    UsageError
        Keys are asked for, and the store has none.
    InvalidInputError
        The file names a node that is not there, or cannot be read; the message has its row.
    """
    if by_key and graph.keys is None:
        raise UsageError("the store has no keys", where=graph.path, fix="name nodes by their row numbers, without --id")
    columns = NODE_COLUMNS if graph.keys is None else (graph.keys.name, *NODE_COLUMNS)
    source = _open(path, columns)
    done, found = 0, [np.empty(0, np.int64)]
    for names in source.blocks(BLOCK_ROWS):
        _refuse(names.is_null().to_numpy(zero_copy_only=False), names, source, done, "names no node")
        found.append(_rows(names, source, done, graph, by_key))
        done += len(names)
    return np.unique(np.concatenate(found))


def _rows(names: pa.Array, source: NameSource, done: int, graph: GraphStore, by_key: bool) -> NDArray[np.int64]:
    wanted = "int64" if not by_key or graph.keys is None else graph.keys.type
    if wanted == "int64":
        names = whole_numbers(names, source, done)
    elif names.type != pa.string():
        raise InvalidInputError(f"the file holds {names.type}", where=source.origin, expected="keys, which are text")
    rows: NDArray[np.int64]
    if by_key and graph.keys is not None:
        rows = graph.keys.rows_of(names)
        _refuse(rows < 0, names, source, done, "is not a key of the store")
        return rows
    rows = names.to_numpy()
    _refuse((rows < 0) | (rows >= graph.num_nodes), names, source, done, f"is not one of {graph.num_nodes:,} nodes")
    return rows


def whole_numbers(names: pa.Array, source: NameSource, done: int) -> pa.Array:
    """Names as int64; text is read as numbers. ``done`` rows came before these."""
    try:
        return names.cast(pa.int64())
    except pa.ArrowInvalid:
        texts = names.to_pylist()
    is_bad = np.array([not _is_number(text) for text in texts])
    _refuse(is_bad, names, source, done, "is not a whole number")
    raise InvalidInputError("a number is too large", where=source.origin, expected="whole numbers below 2^63")


def _is_number(text: object) -> bool:
    try:
        int(str(text))
    except ValueError:
        return False
    return True


def _refuse(is_bad: NDArray[np.bool_], names: pa.Array, source: NameSource, done: int, how: str) -> None:
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise InvalidInputError(f"{names[row].as_py()!r:.200} {how}", where=source.where(done + row))


def _open(path: Path, columns: tuple[str, ...]) -> NameSource:
    with reading(path):
        path.stat()
    if is_table(path):
        table = open_table(path)
        named = [name for name in columns if name in table.names]
        return table_names(named[0] if named or len(table.names) != 1 else table.names[0], table)
    if path.suffix.lower() == ".npy":
        return npy_names("nodes", open_npy(path))
    if path.suffix.lower() in TEXT_SUFFIXES:
        return text_names(path, columns)
    raise InvalidInputError(
        "we cannot tell the format of this file by its name",
        where=path,
        expected="a list of nodes in .npy, .txt, .csv, .tsv, .parquet or .arrow",
    )
