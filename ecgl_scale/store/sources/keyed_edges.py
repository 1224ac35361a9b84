"""Edges that name nodes by their keys: in a table, or in text; every block is looked up on its way in.

Which keys there are is known when the store is built: ``with_keys``. Workers open tables and keys from their files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, IntArray
from ecgl_scale.store.keys.find import find_rows
from ecgl_scale.store.keys.read import StoreKeys
from ecgl_scale.store.sources.edge_text import TextEdges
from ecgl_scale.store.sources.names import as_names
from ecgl_scale.store.sources.table_edges import TableEdges
from ecgl_scale.store.sources.tables import open_table

EDGES_A_KEY = 4
"""The names of an edge, their hashes and the way to their rows take as much memory as so many edges of numbers."""


@dataclass(frozen=True, eq=False)
class KeyedTableEdges(TableEdges):
    """Edges between keys in a Parquet or Arrow file."""

    kind = "keyed table"
    keys: StoreKeys | None = None
    names_keys = True

    def with_keys(self, keys: StoreKeys) -> KeyedTableEdges:
        """These edges with the keys of their nodes."""
        return replace(self, keys=keys)

    def cut(self, max_edges: int) -> list[Block] | None:
        """Smaller pieces than those of numbers."""
        return super().cut(max(1, max_edges // EDGES_A_KEY))

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order, in smaller blocks than those of numbers."""
        return super().stream(max(1, max_edges // EDGES_A_KEY))

    def _ids(self, batch: Any, name: str, first_row: int) -> IntArray:
        return _rows(self.keys, batch.column(name), f"{self.table.path}, column {name}", first_row)

    def identity(self) -> None:
        """Keys may change while their file keeps its name: no build goes on with pieces of an earlier one."""
        return

    def describe(self, work: Path) -> Json:
        """Name the file, its columns, and the files of the keys."""
        return {**super().describe(work), "keys": _known(self.keys).describe()}

    @classmethod
    def open(cls, description: Json) -> KeyedTableEdges:
        """Open the files again."""
        table, keys = open_table(Path(description["path"])), StoreKeys.open(description["keys"])
        return cls(table, description["src_column"], description["dst_column"], keys)


@dataclass(frozen=True, eq=False)
class KeyedTextEdges(EdgeSource):
    """Edges between keys in a text file."""

    text: TextEdges
    keys: StoreKeys | None = None
    names_keys = True

    def with_keys(self, keys: StoreKeys) -> KeyedTextEdges:
        """These edges with the keys of their nodes."""
        return replace(self, keys=keys)

    def cut(self, max_edges: int) -> None:  # noqa: ARG002
        """Nothing can be read before what comes earlier."""
        return

    def read(self, start: int, stop: int) -> EdgeBlock:
        """No piece can be read by itself."""
        raise UsageError(f"edges {start} to {stop} only come after those before them", where=self.text.path)

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        path = str(self.text.path)
        for batch, first_row in self.text.batches(max(1, max_edges // EDGES_A_KEY)):
            src, dst = (
                _rows(self.keys, batch.column(name), f"{path}, column {name}", first_row)
                for name in (self.text.src_column, self.text.dst_column)
            )
            yield EdgeBlock(src, dst, path, first_row)


def _rows(keys: StoreKeys | None, names: Any, origin: str, first_row: int) -> IntArray:
    return find_rows(_known(keys), as_names(names, origin), lambda row: f"{origin}, row {first_row + row}")


def _known(keys: StoreKeys | None) -> StoreKeys:
    if keys is None:
        raise UsageError("edges are given by key, but nodes have no keys", fix="say which column has them: --id-column")
    return keys
