"""OGB's binary layout (papers100M): raw/data.npz and raw/node-label.npz, array by array, block by block.

Nothing is read whole; ``npy_edges`` has the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import AnyArray, ColumnSource, DenseSource
from ecgl_scale.store.sources.archive import PublishedFiles
from ecgl_scale.store.sources.npy import NpzFile
from ecgl_scale.store.sources.npz_in_zip import open_published_npz
from ecgl_scale.store.sources.ogb_csv import whole_numbers

MAX_COUNTS_BYTES = 1 << 10


def open_arrays(files: PublishedFiles, name: str, *, cache: Path) -> NpzFile:
    """Open one of the two .npz files; pickled members, which OGB does not publish, are left alone."""
    return open_published_npz(files, name, cache=cache, skip_objects=True)


def count_nodes(arrays: NpzFile) -> int:
    """The one entry of ``num_nodes_list``."""
    return _single_count(arrays, "num_nodes_list")


def count_edges(arrays: NpzFile) -> int:
    """The one entry of ``num_edges_list``, checked against the shape of ``edge_index``."""
    num_edges = _single_count(arrays, "num_edges_list")
    header = arrays.header("edge_index")
    if header.shape != (2, num_edges) or header.dtype.kind not in "iu":
        raise InvalidInputError(
            f"edge_index has shape {header.shape} and dtype {header.dtype}",
            where=arrays.where("edge_index"),
            expected=f"whole numbers of shape (2, {num_edges})",
        )
    return num_edges


def _single_count(arrays: NpzFile, name: str) -> int:
    values = arrays.load(name, MAX_COUNTS_BYTES).reshape(-1)
    if values.size != 1 or values.dtype.kind not in "iu" or values[0] < 0:
        raise InvalidInputError(f"{name} is {values.tolist()}", where=arrays.where(name), expected="one graph's count")
    return int(values[0])


def binary_features(arrays: NpzFile, *, num_nodes: int) -> DenseSource | None:
    """``node_feat`` as it is stored, or None where there is none."""
    if "node_feat" not in arrays.members:
        return None
    header = arrays.header("node_feat")
    if len(header.shape) != 2 or header.shape[0] != num_nodes or header.dtype.kind != "f":
        raise InvalidInputError(
            f"node_feat has shape {header.shape} and dtype {header.dtype}",
            where=arrays.where("node_feat"),
            expected=f"floats of shape ({num_nodes}, any)",
        )
    return DenseSource(header.shape[1], header.dtype, arrays.where("node_feat"), partial(arrays.blocks, "node_feat"))


def binary_column(arrays: NpzFile, name: str, *, column: str, num_nodes: int) -> ColumnSource:
    """One value a node, as int32; NaN becomes -1."""
    origin = arrays.where(name)
    shape = arrays.header(name).shape
    if shape not in {(num_nodes,), (num_nodes, 1)}:
        raise InvalidInputError(
            f"{name} has shape {shape}", where=origin, expected=f"({num_nodes},) or ({num_nodes}, 1)"
        )

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        row = 0
        for block in arrays.flat_blocks(name, 0, num_nodes, max_rows):
            yield whole_numbers(block, origin=origin, first_row=row)
            row += block.size

    return ColumnSource(column, np.dtype(np.int32), origin, blocks)
