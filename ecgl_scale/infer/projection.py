"""Sparse rows times R first, and along the edges after: what random features of bags of words are made of.

    z = sum over j of P^j (x R_j) / |P^j x|          f = relu(z), see ``random_features``

P^j x of a bag of words is dense, and as wide as there are words. P is linear, so x R_j may come first: a row of R for
every word that a node has, and then the columns of R go along the edges. The lengths |P^j x| are missing: for them the
words go along the edges, too, some columns at a time; their squares are added up, and nothing of them is kept.

z goes to a file for every 512 columns of R, which are drawn when they are wanted. How many columns go along the edges
at once follows from the memory; a column's numbers, and the order in which squares are added, do not.
Memory: see ``lay_out``. Killed, it goes on with the file that was under way, and with the squares that were added.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.product import multiply_rows
from ecgl_kernels.rows import add_squares, csr_columns
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.engine.journal import Journal, VectorJournal
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.graph.propagate import BLOCK_BYTES, MIN_COLUMNS, StreamedPropagation
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.matrix import make_matrix, map_matrix
from ecgl_scale.infer.random_features import BLOCK_COLUMNS, RandomFeatures
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.store.source import CsrBlock

LINE_COLUMNS = 16
"""Columns of a cache line: as many times that go along together, where there is a choice."""
ADD_ROWS = 1024
"""Rows that are divided by their lengths at once."""
STAGE = "multiply features and pass them along"

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ProjectionLayout:
    """How rows are projected within a budget."""

    columns: int
    """Columns that go along the edges at once."""
    peak_bytes: int
    formula: str


def lay_out(num_nodes: int, num_features: int, num_hops: int, *, room_bytes: int) -> ProjectionLayout:
    """What ``Projection`` does with ``room_bytes`` of memory.

    48 MiB of blocks, 12 bytes a node for P and 8 for the squares of each number of hops, 512 columns of R; and for each
    column that goes along 8 bytes a node and 4 a feature.
    """
    drawn = 4 * BLOCK_COLUMNS * num_features * (num_hops + 1)
    fixed = 3 * BLOCK_BYTES + (12 + 8 * (num_hops + 1)) * num_nodes + drawn
    column_bytes = 8 * num_nodes + 4 * num_features
    fitting = max(room_bytes - fixed, 0) // column_bytes
    unit = LINE_COLUMNS if fitting >= LINE_COLUMNS else MIN_COLUMNS
    columns = min(max(fitting // unit * unit, MIN_COLUMNS), BLOCK_COLUMNS)
    formula = (
        f"48 MiB of blocks, {12 + 8 * (num_hops + 1)} bytes for each of {num_nodes:,} nodes, "
        f"{BLOCK_COLUMNS} columns of {num_features * (num_hops + 1):,} random numbers, {columns} columns on their way"
    )
    return ProjectionLayout(columns, fixed + columns * column_bytes, formula)


def plan_projection(
    num_nodes: int, num_edges: int, num_features: int, num_hops: int, width: int, *, room_bytes: int
) -> StagePlan:
    """What projecting so many nodes needs; ``written_bytes`` is what its files take of the disk."""
    layout = lay_out(num_nodes, num_features, num_hops, room_bytes=room_bytes)
    passes = -(-num_features // layout.columns) * num_hops
    passes += -(-width // layout.columns) * sum(range(num_hops + 1))
    return StagePlan(
        "infer",
        layout.peak_bytes,
        layout.formula,
        read_bytes=4 * num_edges * passes,
        written_bytes=4 * num_nodes * width,
        passes=passes,
        blocks=-(-width // BLOCK_COLUMNS),
        setting="memory",
    )


class Projection:
    """z of every node of a graph, or of some, in files."""

    def __init__(
        self,
        features: FeatureReader,
        mapping: RandomFeatures,
        num_hops: int,
        norm: Norm,
        resources: Resources,
        directory: Path,
        own: Ids | None = None,
    ) -> None:
        """``features`` must be sparse, and stay so; ``own`` are the nodes, ascending, whose rows are kept."""
        self._features = features
        self._mapping = mapping
        self._num_hops = num_hops
        self._resources = resources
        self._directory = directory
        self._own = np.arange(features.num_rows) if own is None else own
        smallest = lay_out(features.num_rows, features.width, num_hops, room_bytes=0)
        resources.require(smallest.peak_bytes, stage=STAGE, formula=smallest.formula)
        room = resources.room_bytes
        self._columns = lay_out(features.num_rows, features.width, num_hops, room_bytes=room).columns
        self._propagation = StreamedPropagation(features.graph, resources, norm)
        about = [num_hops, norm, mapping.width, mapping.seed, None if own is None else crc32c_of(own)]
        self._identity = {**features.identity(), "kind": "projected features", "about": about}

    def run(self) -> list[Matrix]:
        """z of each 512 columns of R, mapped."""
        journal = Journal(self._directory, self._identity)
        finished = self._finished(journal)
        scales: Matrix | None = None
        for start in self._mapping.starts:
            if start not in finished:
                scales = self._inverse_lengths() if scales is None else scales
                self._project(start, scales)
                finished[start] = self._crc(start)
                if journal.is_due or start == self._mapping.starts[-1]:
                    journal.save({"crcs": finished})
        shutil.rmtree(self._directory / "lengths", ignore_errors=True)
        return [self._map(start) for start in self._mapping.starts]

    def _path(self, start: int) -> Path:
        return self._directory / f"projected-{start}.rows"

    def _width(self, start: int) -> int:
        return min(BLOCK_COLUMNS, self._mapping.width - start)

    def _map(self, start: int) -> Matrix:
        return map_matrix(self._own.size, self._width(start), self._path(start))

    def _crc(self, start: int) -> int:
        return crc32c_of(self._map(start))

    def _finished(self, journal: Journal) -> dict[int, int]:
        """The files that an earlier call has finished, and that are as they were, with their checksums."""
        found: dict[int, int] = {}
        try:
            for start, crc in (journal.load() or {})["crcs"].items():
                if self._crc(int(start)) == crc:
                    found[int(start)] = crc
        except (OSError, LookupError, TypeError, ValueError, AttributeError):
            return found
        return found

    def _inverse_lengths(self) -> Matrix:
        """1 / |P^j x| of each kept node, [hops + 1, nodes]; 1 where it is zero."""
        features, counts = self._features, (self._num_hops + 1, self._features.num_rows)
        with closing(VectorJournal(self._directory / "lengths", self._identity)) as journal:
            loaded = journal.load(counts[0] * counts[1])
            squares = np.zeros(counts) if loaded is None else loaded[0].reshape(counts).copy()
            first = 0 if loaded is None else int(loaded[1]["column"])
            for start in range(first, features.width, self._columns):
                stop = min(start + self._columns, features.width)
                x = self._words(start, stop)
                journal.wait()  # until then the squares may not change
                for hops in range(counts[0]):
                    x = self._propagation.send(x, 1) if hops else x
                    add_squares(x, squares[hops])
                if journal.is_due:
                    journal.save(squares.ravel(), {"column": stop})
            journal.wait()
        lengths = np.sqrt(squares[:, self._own])
        lengths[lengths == 0] = 1.0
        return (1.0 / lengths).astype(np.float32)

    def _words(self, first: int, stop: int) -> Matrix:
        """Columns ``first`` up to ``stop`` of all features."""
        x = np.empty((self._features.num_rows, stop - first), np.float32)

        def spread(start: int, rows: CsrBlock) -> None:
            csr_columns(rows.indptr, rows.indices, rows.values, first, x[start : start + rows.num_rows])

        self._features.each_piece(spread, threads=self._resources.threads)
        return x

    def _multiplied(self, weights: Matrix) -> Matrix:
        """All features times the weights, [features, columns]."""
        x = np.empty((self._features.num_rows, weights.shape[1]), np.float32)

        def multiply(start: int, rows: CsrBlock) -> None:
            multiply_rows(rows.indptr, rows.indices, rows.values, weights, x[start : start + rows.num_rows])

        self._features.each_piece(multiply, threads=self._resources.threads)
        return x

    def _project(self, start: int, scales: Matrix) -> None:
        """Write the file of the columns of R from ``start`` on."""
        drawn, width = self._mapping.draw(start), self._features.width
        out = make_matrix(self._own.size, self._width(start), self._path(start))
        for first, stop in self._cut(len(drawn)):
            for hops in range(self._num_hops + 1):
                weights = np.ascontiguousarray(drawn[first:stop, hops * width : (hops + 1) * width].T)
                x = self._propagation.send(self._multiplied(weights), hops)
                for begin in range(0, self._own.size, ADD_ROWS):
                    here = slice(begin, begin + ADD_ROWS)
                    out[here, first:stop] += x[self._own[here]] * scales[hops, here, None]

    def _cut(self, width: int) -> Iterator[tuple[int, int]]:
        return pairwise([*range(0, width, self._columns), width])
