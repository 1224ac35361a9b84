"""The vectors of PageRank: in memory, or in files cut at the stripes where workers share none.

What is given is put there a stripe at a time, so that a process whose workers have the vectors never holds a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.place import Place, make_place, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.rounds import Rounds, make_rounds, open_rounds
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.degrees import keep_degrees
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.graph import GraphStore

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class RankVectors:
    """One number a node, each vector padded to whole ranges and, in files, cut at the stripes."""

    ranks: Rounds
    contributions: Rounds
    degrees: Place
    reset: Place | None
    """Where restarts go; None for anywhere alike."""

    def describe(self) -> Json:
        """The places of all of them."""
        return {
            "ranks": self.ranks.describe(),
            "contributions": self.contributions.describe(),
            "degrees": self.degrees.describe(),
            "reset": None if self.reset is None else self.reset.describe(),
        }

    @classmethod
    def open(cls, description: Json) -> RankVectors:
        """The vectors that another process has described."""
        ranks, contributions = (open_rounds(description[name]) for name in ("ranks", "contributions"))
        reset = None if description["reset"] is None else open_place(description["reset"])
        return cls(ranks, contributions, open_place(description["degrees"]), reset)


def stripe_cuts(graph: GraphStore) -> list[int]:
    """Return where stripes begin, and the end of the padding."""
    return [*(block.start for block in graph.tiles.blocks()), graph.tiles.num_ranges * RANGE_ROWS]


def make_vectors(
    graph: GraphStore, precision: str, reset: Vector | None, resources: Resources, name: str
) -> RankVectors:
    """Make room for all vectors, and put degrees and restarts there."""
    cuts = stripe_cuts(graph)
    restarts = None
    if reset is not None:
        restarts = make_place(resources, f"{name}/reset", cuts, "float64")
        keep_normalised(restarts, cuts, reset, graph.num_nodes, "reset", graph.dropped)
    return RankVectors(
        ranks=make_rounds(resources, f"{name}/ranks", cuts, "float64", in_memory=1),
        contributions=make_rounds(resources, f"{name}/contributions", cuts, precision, in_memory=2),
        degrees=keep_degrees(graph, resources, f"{name}/degrees", cuts),
        reset=restarts,
    )


def keep_normalised(
    place: Place,
    cuts: Sequence[int],
    vector: Vector | None,
    num_nodes: int,
    name: str,
    dropped: Dropped | None = None,
) -> None:
    """Put a vector that sums to one in its place, or 1/N for each node without one; padded, a stripe at a time.

    Nodes that were dropped have nothing of it.
    """
    vector, total = _checked(vector, num_nodes, name, dropped)
    each = 1.0 / (num_nodes if dropped is None else dropped.num_live)
    for start, stop in pairwise(cuts):
        rows = place.room(start, stop)
        rows[: max(num_nodes - start, 0)] = each if vector is None else vector[start:stop] / total
        if dropped is not None:
            rows[dropped.within(start, stop)] = 0.0
        place.write(start, rows)


def _checked(vector: Vector | None, num_nodes: int, name: str, dropped: Dropped | None) -> tuple[Vector | None, float]:
    if vector is None:
        return None, 1.0
    vector = np.asarray(vector, np.float64)
    if vector.shape != (num_nodes,):
        raise UsageError(f"{name} has shape {vector.shape}", expected=f"one value for each of {num_nodes} nodes")
    total = math.fsum(vector) - (0.0 if dropped is None else math.fsum(vector[dropped.ids]))
    if not (np.isfinite(vector).all() and (vector >= 0).all() and total > 0):
        raise UsageError(f"{name} is not a distribution", expected="finite values >= 0, not all zero")
    return vector, total
