"""Which nodes may be chosen: by a node column, or by a file of ids.

``.npy``      integers, one a candidate
``.parquet``  a column ``node``, such as the scores of an earlier choice; of a run's ``split.parquet`` the nodes of all
              tasks that train

Memory: a byte a node, and a block of ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.npy import open_npy, reading

BLOCK_IDS = 1 << 16
SPLIT_HEAD = b"ecgl.tasks"
"""In the metadata of a run's ``split.parquet``."""
TRAIN = 0

Mask = NDArray[np.bool_]


def candidate_mask(graph: GraphStore, candidates: tuple[str, int] | Path) -> Mask:
    """An entry for each node: whether it may be chosen.

    Raises
    ------
    InvalidInputError
        A file that is none of these kinds, or has ids that are no nodes or are there twice.
    """
    if isinstance(candidates, Path):
        return _of_file(candidates, graph.num_nodes)
    column, value = candidates
    mask = np.zeros(graph.num_nodes, np.bool_)
    for start, values in graph.nodes.blocks(column) if graph.nodes is not None else ():
        np.equal(values, value, out=mask[start : start + values.size])
    return mask


def _of_file(path: Path, num_nodes: int) -> Mask:
    mask = np.zeros(num_nodes, np.bool_)
    blocks, may_repeat = (_npy(path), False) if path.suffix == ".npy" else _parquet(path)
    for ids in blocks:
        outside = (ids < 0) | (ids >= num_nodes)
        if outside.any():
            raise InvalidInputError(
                f"candidate {ids[np.argmax(outside)]} is no node", where=path, expected=f"ids from 0 to {num_nodes - 1}"
            )
        if not may_repeat:
            _refuse_repeated(ids, mask, path)
        mask[ids] = True
    return mask


def _refuse_repeated(ids: NDArray[Any], mask: Mask, path: Path) -> None:
    ordered = np.sort(ids)
    twice = ids[mask[ids]] if mask[ids].any() else ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        raise InvalidInputError(
            f"candidate {twice[0]} is there twice", where=path, expected="each node once", fix="numpy.unique the ids"
        )


def _npy(path: Path) -> Iterator[NDArray[Any]]:
    file = open_npy(path)
    if len(file.shape) != 1 or file.dtype.kind not in "iu":
        raise InvalidInputError(
            f"candidates are {file.dtype} of shape {file.shape}", where=path, expected="one row of integers, node ids"
        )
    return file.blocks(BLOCK_IDS)


def _parquet(path: Path) -> tuple[Iterator[NDArray[Any]], bool]:
    """Blocks of ids, and whether a node may come again, as in several tasks of a run."""
    with reading(path):
        schema = pq.read_schema(path)
    is_split = SPLIT_HEAD in (schema.metadata or {}) and "part" in schema.names
    if "node" not in schema.names or not pa.types.is_integer(schema.field("node").type):
        raise InvalidInputError(
            "the file has no node ids", where=path, expected="Parquet with a column node of integers"
        )
    return _parquet_blocks(path, is_split), is_split


def _parquet_blocks(path: Path, is_split: bool) -> Iterator[NDArray[Any]]:
    with reading(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BLOCK_IDS, columns=["node", "part"] if is_split else ["node"]):
            if batch.column("node").null_count:
                raise InvalidInputError("a node id is missing", where=path, expected="an id in every row")
            ids = as_numpy(batch.column("node"))
            yield ids[as_numpy(batch.column("part")) == TRAIN] if is_split else ids
