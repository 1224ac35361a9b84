"""Distances to the neighbours as work on rows: what one slice of the columns adds to the squares of a range of nodes.

A worker holds a slice of the columns of all nodes, for as long as the round lasts, and the maps of the edges that it
has seen. A row's squares go on from those of the slice before, in the order of the columns, so no bit depends on where
slices begin, or on who does which rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.rounds import Rounds, open_rounds
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.rank.held_columns import EdgeRange, columns_of
from ecgl_scale.store.edges.older import BlockRows
from ecgl_scale.store.graph import GraphStore

RANGE_EDGES = 1 << 19
"""Edges a thread takes at once: enough to forget the hand-over, few enough that all threads end together."""


@dataclass(frozen=True)
class ScoredRows:
    """What was read for a block: its edges, and the columns where they were not held yet."""

    read_bytes: int


class DistanceWork(Work[None, ScoredRows]):
    """What a slice of the columns adds to some rows; ``given`` has its ``first`` column and where it ``stop``s.

    Rounds of ``squared`` are numbered by the columns that are in them.
    """

    name: ClassVar[str] = "rank.diversity"
    record: ClassVar[type[Any]] = ScoredRows
    has_small_records: ClassVar[bool] = True

    def __init__(
        self, graph: GraphStore, source: FeatureSource, squared: Rounds, *, include_self: bool, threads: int
    ) -> None:
        self.columns = columns_of(source.features)
        self._graph = graph
        self._source = source
        self._squared = squared
        self._include_self = include_self
        self._threads = threads
        self._mapped: dict[int, BlockRows] = {}
        self._lock = threading.Lock()
        self._slice_held = (0, 0)
        self._load_kernels()

    def describe(self) -> Json:
        """Say where store, features and squares are."""
        return {
            "store": self._graph.address,
            "features": self._source.description,
            "squared": self._squared.describe(),
            "include_self": self._include_self,
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> DistanceWork:
        """Open the work on a worker that has only files."""
        return cls(
            GraphStore.open(description["store"]),
            FeatureSource.open(description["features"]),
            open_rounds(description["squared"]),
            include_self=description["include_self"],
            threads=resources.threads,
        )

    def stored_blocks(self) -> list[Block]:
        """Return the blocks of rows as the edges are stored."""
        return self._graph.edges.blocks()

    def ranges(self) -> list[Block]:
        """Cut all rows into ranges of about ``RANGE_EDGES`` edges; no row is cut. Reads and compares the edges."""
        ranges: list[Block] = []
        stored = self.stored_blocks()
        for block, rows in zip(stored, map_bounded(self._rows_of, stored, threads=self._threads), strict=True):
            num_ranges = max(rows.num_edges // RANGE_EDGES, 1)
            targets = np.linspace(0, rows.num_edges, num_ranges + 1)[1:-1].tolist()
            cuts = sorted({rows.row_at(target) for target in targets})
            for first, stop in pairwise([0, *(cut for cut in cuts if 0 < cut < block.num_rows), block.num_rows]):
                ranges.append(Block(len(ranges), block.start + first, block.start + stop))
        return ranges

    def hold(self, first: int, stop: int) -> int:
        """Load a slice, unless it is there, and return the bytes read."""
        with self._lock:
            if self._slice_held == (first, stop):
                return 0
            self._slice_held = (0, 0)
            read_bytes = self.columns.load(first, stop, threads=self._threads)
            self._slice_held = (first, stop)
            return read_bytes

    def run(self, block: Block, given: Json, scratch: None) -> ScoredRows:
        """Add the squares of one slice to those before it."""
        del scratch
        first, stop = given["first"], given["stop"]
        read_bytes = self.hold(first, stop)
        squared = self._squared.at(first).read(block.start, block.stop)
        for edges in self._edges_into(block):
            own = slice(edges.first_row - block.start, edges.first_row - block.start + edges.indptr.size - 1)
            self.columns.add(edges, self._include_self, squared[own])
            read_bytes += edges.num_bytes
        self._squared.at(stop).write(block.start, squared)
        return ScoredRows(read_bytes)

    def _edges_into(self, block: Block) -> Iterator[EdgeRange]:
        starts = self._graph.manifest.edges.block_starts
        stored = self._graph.edges.blocks()[int(np.searchsorted(starts, block.start, side="right")) - 1]
        for row, rows in self._rows_of(stored).parts(block.start - stored.start, block.stop - stored.start):
            yield EdgeRange(rows.offsets, rows.values, stored.start + row)

    def _rows_of(self, stored: Block) -> BlockRows:
        # Maps are kept for the next slice: mapping the files anew would fault every page in again.
        if stored.index not in self._mapped:
            self._mapped[stored.index] = self._graph.edges.rows(stored)
        return self._mapped[stored.index]

    def _load_kernels(self) -> None:
        """Compile (or load) what we need before memory is planned, as the compiler's memory stays with the process."""
        indptr, indices = np.zeros(1, np.int64), np.zeros(0, self._graph.edges.id_dtype)
        indptr.setflags(write=False)
        indices.setflags(write=False)
        self.columns.add(EdgeRange(indptr, indices, 0), False, np.zeros(0, np.float64))
