"""Real graphs cut into what arrives together, as npz files for ``ecgl ingest`` and ``ecgl append``.

Rows are sorted by arrival. An edge arrives when its source says so, and not before both of its ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ARRIVAL = "first_release"
"""The node column that says when a node came."""


@dataclass(frozen=True)
class Arriving:
    """A graph with rows in the order in which they arrive."""

    edge_index: Array
    edge_arrival: Array
    node_arrival: Array
    """Ascending."""
    features: tuple[Array, Array, Array]
    """CSR: values, columns, row starts."""
    num_features: int
    labels: Array

    @classmethod
    def of(cls, path: Path, arrivals: Callable[[Any], tuple[Array, Array]]) -> Arriving:
        """Read a graph of ``../shared/data``; ``arrivals`` says when its nodes and edges come."""
        with np.load(path, allow_pickle=False) as file:
            nodes, edges = arrivals(file)
            order = np.argsort(nodes, kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(order.size)
            ends = place[file["edge_index"].astype(np.int64)]
            starts = file["x_indptr"].astype(np.int64)
            lengths = np.diff(starts)[order]
            row_starts = np.concatenate([[0], np.cumsum(lengths)])
            values = np.repeat(starts[order] - row_starts[:-1], lengths) + np.arange(row_starts[-1])
            features = (file["x_data"][values], file["x_indices"][values], row_starts)
            arrived = np.maximum(edges, nodes[order][ends].max(axis=0))
            return cls(ends, arrived, nodes[order], features, int(file["x_shape"][1]), file["y"][order])

    @property
    def num_parts(self) -> int:
        """How often something arrives, the first time included."""
        return int(self.node_arrival[-1]) + 1

    def count_late(self) -> int:
        """Edges between nodes that came together, which came after them."""
        return int((self.edge_arrival > self.node_arrival[self.edge_index].max(axis=0))[self._is_inside()].sum())

    def _is_inside(self) -> Array:
        first, second = self.node_arrival[self.edge_index]
        inside: Array = first == second
        return inside

    def write(self, part: int, path: Path) -> Path:
        """What arrives at one time; edges name nodes of the whole graph."""
        rows = np.searchsorted(self.node_arrival, [part, part + 1])
        return self._write(path, int(rows[0]), int(rows[1]), self.edge_arrival == part)

    def write_whole(self, path: Path) -> Path:
        """All of it, but the late edges: tasks are learned with the edges that there were by then."""
        late = self._is_inside() & (self.edge_arrival > self.node_arrival[self.edge_index].max(axis=0))
        return self._write(path, 0, self.node_arrival.size, ~late)

    def _write(self, path: Path, start: int, stop: int, edges: Array) -> Path:
        values, columns, starts = self.features
        low, high = starts[start], starts[stop]
        np.savez(
            path,
            edge_index=self.edge_index[:, edges],
            x_data=values[low:high],
            x_indices=columns[low:high],
            x_indptr=starts[start : stop + 1] - low,
            x_shape=np.array([stop - start, self.num_features]),
            y=self.labels[start:stop],
            num_nodes=np.array(stop - start),
            **{ARRIVAL: self.node_arrival[start:stop].astype(np.uint8)},
        )
        return path


def by_release(file: Any) -> tuple[Array, Array]:
    """Debian's packages and dependencies by the first release that has them."""
    mask = file["edge_release_mask"].astype(np.int64)
    return file["first_release"].astype(np.int64), np.log2(mask & -mask).astype(np.int64)


def by_classes(file: Any, classes_at_a_time: int = 2) -> tuple[Array, Array]:
    """Nodes by their label, two classes at a time; edges with their later end."""
    nodes = file["y"].astype(np.int64) // classes_at_a_time
    return nodes, np.zeros(file["edge_index"].shape[1], np.int64)
