"""Nodes that a user names in a file, by row number or by key: the nodes to predict, to forget or to drop.

.npy              one number or text a node
.txt              one a line
.csv, .tsv        a single column, or one whose name is in the first row: that of the keys, ``node`` or ``key``
Parquet, Arrow    the same
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.keys.find import find_rows, refuse, refuse_missing, whole_numbers
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
        where = partial(_where, source, done)
        if by_key and graph.keys is not None:
            found.append(find_rows(graph.keys, names, where))
        else:
            refuse_missing(names, where)
            rows = as_numpy(whole_numbers(names, where))
            is_outside = (rows < 0) | (rows >= graph.num_nodes)
            refuse(is_outside, names, where, f"is not one of {graph.num_nodes:,} nodes")
            found.append(rows)
        done += len(names)
    return np.unique(np.concatenate(found))


def _where(source: NameSource, done: int, row: int) -> str:
    return source.where(done + row)


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
