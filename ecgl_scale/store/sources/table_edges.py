"""Edges in a Parquet or Arrow table: Parquet by row groups and Arrow by batches, as long as these are small enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, IntArray, file_identity
from ecgl_scale.store.sources.tables import Table, open_table

PARTS_JOINED = 8
"""Parts are joined up to this fraction of a piece: a copy costs more than one small piece, and less than tiny ones."""


@dataclass(frozen=True)
class TableEdges(EdgeSource):
    """Edges in a Parquet or Arrow file, of which row groups or batches can be read by themselves."""

    kind = "table"
    table: Table
    src_column: str
    dst_column: str

    def cut(self, max_edges: int) -> list[Block] | None:
        """Single parts, or runs of small ones, which are copied together.

        None where a part alone has more edges than a piece: it would be decoded anew for each.
        """
        parts = self.table.parts
        if parts is None or max(parts, default=0) > max_edges:
            return None
        cuts = [0]
        for stop in accumulate(parts):
            if len(cuts) > 1 and stop - cuts[-2] <= max_edges // PARTS_JOINED:
                cuts[-1] = stop
            elif stop > cuts[-1]:
                cuts.append(stop)
        return [Block(index, *bounds) for index, bounds in enumerate(pairwise(cuts))]

    def read(self, start: int, stop: int) -> EdgeBlock:
        """The parts that begin from ``start`` on, before ``stop``."""
        starts = [0, *accumulate(self.table.parts or ())]
        wanted = [part for part, first in enumerate(starts[:-1]) if start <= first < stop]
        blocks = list(self._blocks(stop - start, start, wanted))
        if len(blocks) == 1:
            return blocks[0]
        src, dst = (np.concatenate([getattr(block, side) for block in blocks]) for side in ("src", "dst"))
        return EdgeBlock(src, dst, str(self.table.path), start)

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        return self._blocks(max_edges, 0)

    def _blocks(self, max_edges: int, first_row: int, parts: Sequence[int] | None = None) -> Iterator[EdgeBlock]:
        names = [self.src_column, self.dst_column]
        for batch in self.table.batches(names, max_edges, parts):
            src, dst = (self._ids(batch, name, first_row) for name in names)
            yield EdgeBlock(src, dst, str(self.table.path), first_row)
            first_row += batch.num_rows

    def _ids(self, batch: Any, name: str, first_row: int) -> IntArray:
        return self.table.values(batch, name, first_row)

    def identity(self) -> Json | None:
        """The file and its columns."""
        return {**self.describe(self.table.path), "file": file_identity(self.table.path)}

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Name the file and its columns."""
        return {"path": str(self.table.path), "src_column": self.src_column, "dst_column": self.dst_column}

    @classmethod
    def open(cls, description: Json) -> TableEdges:
        """Open the file again."""
        return cls(open_table(Path(description["path"])), description["src_column"], description["dst_column"])
