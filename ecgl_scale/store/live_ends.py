"""Edges of an append to a store that has dropped nodes: one that leads to such a node, or from it, is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ecgl_kernels.live import find_dropped_end
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import EcglError, InvalidInputError
from ecgl_scale.store.dropped import Dropped, open_dropped
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, describe_edges, open_edges
from ecgl_scale.store.keys.read import StoreKeys
from ecgl_scale.store.remote import files_of
from ecgl_scale.store.view import StoreView, read_view


class LiveEnds(EdgeSource):
    """The edges of another source, looked at as they come. Memory: see ``Dropped``."""

    def __init__(self, edges: EdgeSource, dropped: Dropped, address: str) -> None:
        self._edges = edges
        self._dropped = dropped
        self._address = address
        # Only what can be sent to another process has a kind.
        self.kind = "live ends" if edges.kind else ""  # type: ignore[misc]

    def with_keys(self, keys: StoreKeys) -> EdgeSource:
        """The edges with keys, looked at in the same way."""
        return LiveEnds(self._edges.with_keys(keys), self._dropped, self._address)

    def cut(self, max_edges: int) -> list[Block] | None:
        """Pieces are those of the source."""
        return self._edges.cut(max_edges)

    def read(self, start: int, stop: int) -> EdgeBlock:
        """The edges of one piece, all between nodes that are there."""
        return self._checked(self._edges.read(start, stop))

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        return map(self._checked, self._edges.stream(max_edges))

    def check(self, pieces: Sequence[tuple[Block, Sequence[int]]]) -> None:
        """Compare checksums as the source does."""
        self._edges.check(pieces)

    def identity(self) -> Json | None:
        """That of the source, and of the store."""
        found = self._edges.identity()
        return None if found is None else [found, self._address]

    def describe(self, work: Path) -> Json:
        """Describe the source, and say where the store is."""
        return {"edges": describe_edges(self._edges, work), "before": self._address}

    @classmethod
    def open(cls, description: Json) -> LiveEnds:
        """Open the source and the list of dropped nodes again."""
        found = without_dropped(open_edges(description["edges"]), read_view(description["before"]))
        if not isinstance(found, LiveEnds):
            raise EcglError(f"{description['before']} has dropped no nodes")
        return found

    def _checked(self, block: EdgeBlock) -> EdgeBlock:
        ends = (block.src, block.dst)
        if any(ids.dtype.kind not in "iu" or ids.ndim != 1 for ids in ends) or block.src.size != block.dst.size:
            return block  # the build says what is wrong
        src, dst = (np.ascontiguousarray(ids, ids.dtype.newbyteorder("=")) for ids in ends)
        at = find_dropped_end(src, dst, self._dropped.bits)
        if at >= 0:
            raise InvalidInputError(
                f"edge {src[at]} -> {dst[at]} names a node that was dropped",
                where=f"{block.origin}, row {block.first_row + at}",
                fix="leave the edge out, or append the node again, which then has another number",
            )
        return block


def without_dropped(edges: EdgeSource, before: StoreView) -> EdgeSource:
    """These edges, which are refused if they name a node that the store has dropped."""
    dropped = open_dropped(files_of(before.location, before.manifest, before.hold), before.manifest)
    return edges if dropped is None else LiveEnds(edges, dropped, before.address)
