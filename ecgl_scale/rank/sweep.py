"""One sweep of PageRank as work on stripes: gather along the edges into a stripe's rows, then update those rows.

A block is a stripe of tiles. It reads the contributions that all nodes made in the last round, adds up those of its own
rows, and turns the sums into ranks and into contributions for the next round. Sums live in a stripe's worth of
scratch, which stays in cache. Round 0, or that of a resumption, only makes contributions of the ranks it is given.
A stripe is swept in one order whoever does it, and its ranges are added up one by one, so no bit depends on threads,
workers or the order of stripes.

Where the tiles' sources have an order, contributions in memory are in that order: a range makes them in the order of
nodes and puts each into its column. In files they are in the order of nodes, and whoever reads them does so. All other
vectors are in the order of nodes in any case.

Memory: a thread holds the sums of the widest stripe; a worker of another process reads all contributions of a round
once and holds them, and its stripe's rows of the other vectors.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.older import sweep_pairs
from ecgl_kernels.order import scatter_columns, sweep_ordered_pairs
from ecgl_kernels.pagerank import DANGLING, finish_range, spread_ranks, sweep_tiles
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import CRC_BYTES, FilePlace, Place, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.rank.rank_vectors import RankVectors
from ecgl_scale.rank.tile_stream import TileStream
from ecgl_scale.store.edges.older import Pairs
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.graph import GraphStore

Vector = NDArray[np.float64]
Sums = NDArray[np.floating[Any]]
"""In the precision of the ranking."""


@dataclass(frozen=True)
class SweptStripe:
    """What the driver adds up over all stripes."""

    partials: Vector
    """For each range of the stripe what ``finish_range`` says of it."""
    read_bytes: int
    """From the edges on the disk."""
    exchanged_bytes: int
    """Through files of vectors, which workers read and write for each other; 0 where they share memory."""


class StripeScratch:
    """What a thread needs for a stripe: its sums, zero whenever nobody uses them, and its rows where they are in files.

    Rows of every stripe are read into the same memory: to touch new memory takes about as long as to read a file.
    """

    def __init__(self, num_rows: int, precision: str, *, has_order: bool) -> None:
        self.sums: Sums = np.zeros(num_rows, precision)
        self.range_contributions: Sums = np.zeros(RANGE_ROWS if has_order else 0, precision)
        self._rows: dict[str, NDArray[Any]] = {}

    def room(self, name: str, place: Place, start: int, stop: int) -> NDArray[Any]:
        """Rows to fill: those of the place, or memory for a file, as the last stripe left it."""
        if not isinstance(place, FilePlace):
            return place.room(start, stop)
        if name not in self._rows:
            self._rows[name] = place.room(0, len(self.sums))
        return self._rows[name][: stop - start]

    def read(self, name: str, place: Place, start: int, stop: int) -> NDArray[Any]:
        """Rows of a stripe."""
        if not isinstance(place, FilePlace):
            return place.read(start, stop)
        rows = self.room(name, place, start, stop)
        place.read_into(start, rows)
        return rows


class StripeContributions:
    """Where the contributions of a stripe's rows go: to their places, which are those of the rows."""

    def __init__(self, rows: Sums) -> None:
        self._rows = rows

    def room(self, rows: slice) -> Sums:
        """An array for some rows, as they were left: rows that contribute nothing are zero."""
        return self._rows[rows]

    def put(self, rows: slice) -> None:
        """The room of these rows is filled."""


class OrderedContributions(StripeContributions):
    """They go into columns: made in the memory of a range, which stays in cache, and put there one by one."""

    def __init__(self, start: int, scratch: Sums, columns: NDArray[Any], target: Sums) -> None:
        super().__init__(scratch)
        self._start = start
        self._columns = columns
        self._target = target

    def room(self, rows: slice) -> Sums:
        """Zeros for some rows; the range before is in its columns."""
        self._rows[:] = 0.0
        return self._rows[: rows.stop - rows.start]

    def put(self, rows: slice) -> None:
        """Put what the room has into the columns of these rows."""
        scatter_columns(self._rows[: rows.stop - rows.start], self._start + rows.start, self._columns, self._target)


class SweepWork(Work[StripeScratch, SweptStripe]):
    """What a round does to one stripe.

    ``given`` has the number of the ``round``; its ``weights`` (damping, constant, reset share), None where ranks are
    only spread; and, where the ranks of the round are to be kept in files besides, ``keep``, which describes the place.
    """

    name: ClassVar[str] = "rank.sweep"
    record: ClassVar[type[Any]] = SweptStripe
    has_small_records: ClassVar[bool] = True

    def __init__(
        self,
        graph: GraphStore,
        vectors: RankVectors,
        precision: str,
        *,
        threads: int = 1,
        order: Sequence[Block] = (),
    ) -> None:
        """``order`` is that of the stripes in every round, where all of them are worked on here."""
        self._graph = graph
        self._vectors = vectors
        self._precision = precision
        self._stream = TileStream(graph.tiles, threads)
        self._order = graph.tiles.order
        self._older: dict[int, list[Pairs]] = {}
        self.expect(order)
        self._lock = threading.Lock()
        self._round_held = -1
        self._held: Sums = np.empty(0, precision)

    def describe(self) -> Json:
        """Say where the store and the vectors are."""
        return {"store": self._graph.address, "precision": self._precision, "vectors": self._vectors.describe()}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> SweepWork:
        """Open the work on a worker that has only files."""
        vectors = RankVectors.open(description["vectors"])
        return cls(GraphStore.open(description["store"]), vectors, description["precision"], threads=resources.threads)

    def scratch(self) -> StripeScratch:
        """Room for the widest stripe."""
        tiles = self._graph.tiles
        num_rows = max(map(tiles.width, tiles.blocks())) * RANGE_ROWS
        return StripeScratch(num_rows, self._precision, has_order=self._order is not None)

    def expect(self, blocks: Sequence[Block]) -> None:
        """While a stripe is swept the next one is read."""
        self._next = {block.index: after for block, after in pairwise(blocks)}

    def run(self, block: Block, given: Json, scratch: StripeScratch) -> SweptStripe:
        """Sweep a stripe and update its rows, or only spread their ranks."""
        number, vectors = given["round"], self._vectors
        start, stop = block.start, block.start + self._graph.tiles.width(block) * RANGE_ROWS
        after = vectors.contributions.at(number)
        contributions, written = self._contributions(block, after, scratch)
        degrees = scratch.read("degrees", vectors.degrees, start, stop)
        used: list[Place] = [vectors.degrees, after]
        read_bytes = exchanged_bytes = 0
        if given["weights"] is None:
            ranks = scratch.read("ranks", vectors.ranks.at(number), start, stop)
            used.append(vectors.ranks.at(number))
            partials = _spread(block, ranks, degrees, contributions)
        else:
            ranks = scratch.read("ranks", vectors.ranks.at(number - 1), start, stop)
            reset = np.empty(0) if vectors.reset is None else scratch.read("reset", vectors.reset, start, stop)
            sums = scratch.sums[: stop - start]
            try:
                before, exchanged_bytes = self._all_contributions(number - 1)
                read_bytes = self._gather(block, before, sums)
            except BaseException:
                sums[:] = 0.0  # as the next block expects them
                raise
            damping, constant, reset_share = given["weights"]
            weights = (damping, constant, reset_share)
            gone = self._dropped_rows(block)
            partials = _finish(block, ranks, sums, reset, degrees, contributions, weights, gone)
            vectors.ranks.at(number).write(start, ranks)
            used += [vectors.ranks.at(number - 1), vectors.ranks.at(number)]
            used += [] if vectors.reset is None else [vectors.reset]
            if given["keep"] is not None:
                open_place(given["keep"]).write(start, ranks)
        if written is not None:
            after.write(start, written)
        exchanged_bytes += sum(place.file_bytes(start, stop) for place in used if isinstance(place, FilePlace))
        return SweptStripe(partials, read_bytes, exchanged_bytes)

    def _contributions(
        self, block: Block, after: Place, scratch: StripeScratch
    ) -> tuple[StripeContributions, Sums | None]:
        """Where contributions go, and the rows to write when they are there; None where each has its column."""
        start, stop = block.start, block.start + self._graph.tiles.width(block) * RANGE_ROWS
        if self._order is not None and not isinstance(after, FilePlace):
            target = after.room(0, self._graph.tiles.num_ranges * RANGE_ROWS)
            return OrderedContributions(start, scratch.range_contributions, self._order.columns, target), None
        rows = scratch.room("contributions", after, start, stop)
        rows[block.num_rows :] = 0.0  # the padding of the last stripe
        return StripeContributions(rows), rows

    def _dropped_rows(self, block: Block) -> NDArray[np.int64]:
        """Rows of a stripe that are no nodes any more."""
        dropped = self._graph.dropped
        return np.empty(0, np.int64) if dropped is None else dropped.within(block.start, block.stop)

    def _gather(self, block: Block, contributions: Sums, sums: Sums) -> int:
        """Add up what comes along the edges into a stripe; returns the bytes read from the disk."""
        if block.index in self._next:
            self._stream.expect(self._next[block.index])
        read_bytes, width = 0, self._graph.tiles.width(block)
        for piece in self._stream.pieces(block):
            sweep_tiles(piece.packed, piece.first_edge, piece.offsets, width, contributions, sums)
            read_bytes += piece.read_bytes
        if block.index not in self._older:
            self._older[block.index] = self._graph.edges.older_pairs(block)  # mapped, and kept from sweep to sweep
        for pairs in self._older[block.index]:
            if self._order is None:
                sweep_pairs(pairs.dst, pairs.src, block.start, contributions, sums)
            else:
                columns = self._order.columns
                sweep_ordered_pairs(pairs.dst, pairs.src, block.start, columns, contributions, sums)
        return read_bytes

    def _all_contributions(self, number: int) -> tuple[Sums, int]:
        """Contributions of a round, and how many bytes were read from files for them: by the first who asks.

        Those of the round before make room for them: a worker never holds two vectors.
        """
        with self._lock:
            if self._round_held == number:
                return self._held, 0
            self._round_held = -1
            place, size = self._vectors.contributions.at(number), self._graph.tiles.num_ranges * RANGE_ROWS
            if not isinstance(place, FilePlace):
                self._held, self._round_held = place.read(0, size), number
                return self._held, 0
            if self._held.size != size:
                self._held = place.room(0, size)
            if self._order is None:
                place.read_into(0, self._held)
            else:
                for start, stop in pairwise(place.cuts):
                    scatter_columns(place.read(start, stop), start, self._order.columns, self._held)
            self._round_held = number
            return self._held, place.file_bytes(0, size)

    def close(self) -> None:
        """End the threads that read ahead."""
        self._stream.close()


def exchange_bytes(cuts: Sequence[int], precision: str, num_workers: int, *, with_reset: bool) -> int:
    """The bytes that a sweep of so many workers exchanges through files, which are cut at ``cuts``.

    Every worker reads the contributions of all nodes, 4 or 8 bytes each. Whoever has a stripe reads its ranks, degrees
    and restarts (8 + 4 + 8 bytes a node) and writes its ranks and contributions. Each file ends with its checksum.
    """
    num_nodes, num_files, own = cuts[-1], len(cuts) - 1, np.dtype(precision).itemsize
    shared = num_workers * (num_nodes * own + num_files * CRC_BYTES)
    vectors = [8, 4, *([8] if with_reset else []), 8, own]
    return shared + num_nodes * sum(vectors) + num_files * CRC_BYTES * len(vectors)


def _ranges(block: Block) -> list[slice]:
    """The rows of each range of a stripe, without the padding, which is no node."""
    return [slice(first, min(first + RANGE_ROWS, block.num_rows)) for first in range(0, block.num_rows, RANGE_ROWS)]


def _spread(block: Block, ranks: Vector, degrees: NDArray[np.uint32], contributions: StripeContributions) -> Vector:
    """Make contributions; dangling mass is added up as ``finish_range`` does, so that resuming changes no bit."""
    partials = np.zeros((len(_ranges(block)), 4))
    for partial, rows in zip(partials, _ranges(block), strict=True):
        partial[DANGLING] = spread_ranks(ranks[rows], degrees[rows], contributions.room(rows))
        contributions.put(rows)
    return partials


def _finish(
    block: Block,
    ranks: Vector,
    sums: Sums,
    reset: Vector,
    degrees: NDArray[np.uint32],
    contributions: StripeContributions,
    weights: tuple[float, float, float],
    gone: NDArray[np.int64],
) -> Vector:
    """Turn sums into ranks and contributions, and clear them.

    Rows of dropped nodes, ``gone``, are stepped over: tiles still lead to them and from them, but their ranks and what
    they contribute stay zero.
    """
    partials = np.zeros((len(_ranges(block)), 4))
    for partial, rows in zip(partials, _ranges(block), strict=True):
        here = gone[slice(*np.searchsorted(gone, [rows.start, rows.stop]))] - rows.start
        own = contributions.room(rows)
        if not here.size:
            finish_range(ranks[rows], sums[rows], reset[rows], degrees[rows], own, weights, partial)
            contributions.put(rows)
            continue
        live = np.delete(np.arange(rows.start, rows.stop), here)
        new_ranks, new_contributions = ranks[live], own[live - rows.start]
        own_reset = reset[live] if reset.size else reset
        finish_range(new_ranks, sums[live], own_reset, degrees[live], new_contributions, weights, partial)
        for vector in (ranks[rows], own, sums[rows]):
            vector[:] = 0.0
        ranks[live], own[live - rows.start] = new_ranks, new_contributions
        contributions.put(rows)
    return partials
