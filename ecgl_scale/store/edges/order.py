"""The order that sources have in the tiles of a store: a column for each node, mapped from ``order.arrow``.

The file is uncompressed Arrow IPC of one record batch with the column ``column``. It belongs to the first generation:
nodes that came later have their own numbers as columns, so what is written stays as it is when a store grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_kernels.order import find_bad_column
from ecgl_scale.base.durable import DurableWriter, WrittenFile
from ecgl_scale.store.checked import corrupt, expected_file
from ecgl_scale.store.compose import generations_of
from ecgl_scale.store.edges.plan import id_dtype_of
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import ORDER_NAME, Manifest
from ecgl_scale.store.ragged import map_checked


@dataclass(frozen=True)
class SourceOrder:
    """Where every node of the first generation is among the columns of tiles. Memory: none of ours."""

    path: Path
    columns: NDArray[Any]

    def require_permutation(self) -> None:
        """Refuse a file in which two nodes have one column. Memory: an eighth of a byte a node."""
        bad_node = find_bad_column(self.columns, np.zeros(-(-self.columns.size // 8), np.uint8))
        if bad_node >= 0:
            raise corrupt(self.path, f"gives node {bad_node} the column of another")


def write_order(path: Path, columns: NDArray[Any]) -> WrittenFile:
    """Write the columns of all nodes."""
    batch = pa.record_batch([pa.array(columns)], names=["column"])
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        return sink.finish()


def map_order(path: Path, expected: WrittenFile, num_nodes: int, *, check_crc: bool = True) -> SourceOrder:
    """Map the columns of a graph of so many nodes, none of which leads outside it."""
    mapped = map_checked(path, expected, check_crc=check_crc)
    try:
        columns = pa.ipc.open_file(mapped).get_batch(0).column("column").to_numpy()
    except (pa.ArrowException, KeyError, IndexError) as error:
        raise corrupt(path, f"is not a file of columns: {error}") from error
    # A checksum shows that nobody damaged the file, not who made it: kernels index memory with these numbers.
    if columns.dtype != id_dtype_of(num_nodes) or columns.size != num_nodes or columns.max() >= num_nodes:
        raise corrupt(path, f"does not hold a column for each of {num_nodes:,} nodes")
    return SourceOrder(path, columns)


def open_order(files: StoreFiles, manifest: Manifest) -> SourceOrder | None:
    """The order of a store, compared with the manifest; None where sources have their own numbers as columns."""
    if manifest.source_order is None:
        return None
    expected = expected_file(manifest.files, ORDER_NAME, files.location).written
    return map_order(files.path(ORDER_NAME), expected, generations_of(manifest)[0].num_nodes)
