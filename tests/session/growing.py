"""A graph whose nodes come in three parts, as a store that grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.store.graph import GraphStore
from tests.session.streams import Drawn

CUTS = (0, 400, 650, 900)


def append_part(path: Path, drawn: Drawn, part: int, *, late_edges: bool = True) -> GraphStore:
    """The store with the nodes of one part more, and the edges that are then known.

    With ``late_edges`` a tenth of the edges between old nodes comes with the last part only.
    """
    first, stop = CUTS[part], CUTS[part + 1]
    edges = drawn.edge_index[:, _arrivals(drawn, late_edges=late_edges) == part]
    nodes = slice(first, stop)
    columns = {"year": drawn.year[nodes]}
    if part == 0:
        return GraphStore.from_edge_index(edges, drawn.x[nodes], drawn.y[nodes], path, columns=columns)
    return GraphStore.open(path).append(edges, drawn.x[nodes], drawn.y[nodes], columns=columns)


def grow_store(path: Path, drawn: Drawn, *, late_edges: bool = True) -> Path:
    """The store of all parts."""
    for part in range(len(CUTS) - 1):
        append_part(path, drawn, part, late_edges=late_edges)
    return path


def _arrivals(drawn: Drawn, *, late_edges: bool) -> NDArray[np.int64]:
    """The part with which each edge comes."""
    arrivals = np.searchsorted(CUTS, drawn.edge_index.max(axis=0), side="right") - 1
    is_late = drawn.edge_index.sum(axis=0) % 10 == 0  # both directions of an edge alike
    return np.where(is_late & late_edges, len(CUTS) - 2, arrivals)
