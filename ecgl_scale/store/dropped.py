"""Nodes that were dropped: their rows stay until the store is compacted, but nobody sees what is in them.

They have no edges, in either direction, no label and no place in a split, features of zeros, and keys that nobody
finds. ``dropped.arrow`` of a generation has their ids in one column, ascending. Memory: 16 bytes for each of them and
an eighth of a byte for each node of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import DurableWriter, WrittenFile
from ecgl_scale.engine.work import Json
from ecgl_scale.store.checked import corrupt, expected_file
from ecgl_scale.store.compose import generations_of, num_dropped_of
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import Manifest
from ecgl_scale.store.generation import DROPPED_NAME
from ecgl_scale.store.ragged import map_checked

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Dropped:
    """All nodes that a store has dropped up to a generation."""

    ids: Ids
    """Ascending, each once."""
    num_nodes: int
    """Rows of the graph, theirs included."""
    files: tuple[tuple[str, int, int], ...] = ()
    """Path, size and crc32c of the files that they are in, for other processes."""

    def describe(self) -> Json:
        """What ``open`` needs in a process that sees the same files."""
        return {"files": [list(file) for file in self.files], "num_nodes": self.num_nodes}

    @classmethod
    def open(cls, description: Json) -> Dropped:
        """Read the files that another process has described."""
        files = tuple((path, size_bytes, crc32c) for path, size_bytes, crc32c in description["files"])
        parts = [read_dropped(Path(path), WrittenFile(*sizes)) for path, *sizes in files]
        return cls(np.sort(np.concatenate(parts)), description["num_nodes"], files)

    @property
    def num_live(self) -> int:
        """Nodes that are still there."""
        return self.num_nodes - self.ids.size

    @cached_property
    def bits(self) -> NDArray[np.uint8]:
        """One bit a node, the lowest of a byte first: set where it was dropped."""
        bits = np.zeros(-(-self.num_nodes // 8), np.uint8)
        np.bitwise_or.at(bits, self.ids >> 3, np.left_shift(1, self.ids & 7).astype(np.uint8))
        return bits

    def within(self, start: int, stop: int) -> Ids:
        """Those of rows ``start`` up to ``stop``, counted from ``start``."""
        first, last = np.searchsorted(self.ids, [start, stop])
        return self.ids[first:last] - start

    def among(self, rows: Any) -> NDArray[np.bool_]:
        """Which of some rows were dropped."""
        rows = np.asarray(rows, np.int64)
        places = np.minimum(np.searchsorted(self.ids, rows), self.ids.size - 1)
        found: NDArray[np.bool_] = self.ids[places] == rows
        return found

    def before(self, rows: Any) -> Ids:
        """How many nodes that are still there have a smaller number than each of some rows."""
        rows = np.asarray(rows, np.int64)
        before: Ids = rows - np.searchsorted(self.ids, rows)
        return before

    def live(self, start: int, stop: int) -> Ids:
        """Ids of the nodes that are still there, from the ``start``-th up to the ``stop``-th."""
        wanted = np.arange(start, min(stop, self.num_live), dtype=np.int64)
        return wanted + np.searchsorted(self._live_before, wanted, side="right")

    @cached_property
    def _live_before(self) -> Ids:
        """How many nodes before each dropped one are still there."""
        return self.ids - np.arange(self.ids.size)


def open_dropped(files: StoreFiles, manifest: Manifest) -> Dropped | None:
    """The dropped nodes of a store; None where there are none."""
    if not num_dropped_of(manifest):
        return None
    parts, opened, num_nodes = [], [], generations_of(manifest)[0].num_nodes
    for generation in generations_of(manifest)[1]:
        num_nodes += generation.num_new_nodes
        if generation.dropped is not None:
            name = f"{generation.folder}/{DROPPED_NAME}"
            expected = expected_file(manifest.files, name, files.location).written
            ids = read_dropped(files.path(name), expected)
            is_good = ids.size == generation.dropped.num_nodes and (ids[1:] > ids[:-1]).all()
            if not is_good or ids[0] < 0 or ids[-1] >= num_nodes:
                raise corrupt(files.path(name), "does not hold the dropped nodes that the manifest says")
            parts.append(ids)
            opened.append((str(files.path(name).absolute()), expected.size_bytes, expected.crc32c))
    together = np.sort(np.concatenate(parts))
    if (together[1:] == together[:-1]).any():
        raise corrupt(files.path(name), "drops nodes that an earlier generation has dropped")
    return Dropped(together, num_nodes, tuple(opened))


def read_dropped(path: Path, expected: WrittenFile) -> Ids:
    """The ids of a file, as a copy."""
    mapped = map_checked(path, expected, check_crc=True)
    try:
        ids = as_numpy(pa.ipc.open_file(mapped).get_batch(0).column("node"))
    except (pa.ArrowException, KeyError, IndexError) as error:
        raise corrupt(path, f"is not a file of dropped nodes: {error}") from error
    if ids.dtype != np.int64:
        raise corrupt(path, f"holds ids as {ids.dtype}")
    found: Ids = ids.copy()
    return found


def write_dropped(path: Path, ids: Ids) -> WrittenFile:
    """Write the ids of dropped nodes, which ascend."""
    schema = pa.schema([pa.field("node", pa.int64(), nullable=False)], metadata={"version": "1"})
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            writer.write_batch(pa.record_batch([as_arrow(ids)], schema=schema))
        return sink.finish()
