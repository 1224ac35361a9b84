"""What a model is given of a node: its features, or rows that are made of them beforehand.

    raw          x itself; the model passes its own hidden values along the edges
    propagated   P^k x
    stacked      [x, P x, ..., P^k x], each part brought to length one
    mapped       relu(stacked R), R normal numbers drawn from a seed, ``width`` columns of them;
                 where x is sparse it may be multiplied first and passed along after, see ``projection``

Rows that are made beforehand need no message passing at a test: the model is a plain function of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ecgl_scale.engine.plan import StagePlan, largest
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.infer.hops import plan_k_hops
from ecgl_scale.infer.projection import plan_projection
from ecgl_scale.infer.random_features import BLOCK_COLUMNS, PRODUCT_ROWS
from ecgl_scale.store.graph import GraphStore

SPARSE_COST = 8
"""A product along an edge or of a stored value, in those of dense matrices."""
USUAL_EDGES, USUAL_WORDS = 20, 100
"""What a node with a bag of words usually has. A store's own numbers would not do: they change as it grows, and with
the way the last bits of rows would change, which a model must have again to forget them exactly."""


@dataclass(frozen=True)
class ModelInput:
    """How the rows are made that a model is given."""

    num_hops: int = 0
    """How far edges are followed."""
    is_stacked: bool = False
    """Whether every number of hops has its own columns, none included; else there are those of ``num_hops`` alone."""
    width: int = 0
    """Random features of a stacked row; 0: the row itself."""
    seed: int = 0
    multiplies_first: bool = False
    """Whether sparse features are multiplied by R before they are passed along; ``on`` says where that pays."""

    def on(self, graph: GraphStore, *, keeps_zeros: bool) -> ModelInput:
        """How the input is made for a store and parts of it: the way that usually takes fewer operations.

        Both ways agree to rounding. Which is taken follows from the number of words alone, which a store has for good.
        ``keeps_zeros`` is whether sparse features stay so when they are scaled.
        """
        features = graph.features
        if features is None or not features.is_sparse or not keeps_zeros or not (self.is_stacked and self.width):
            return self
        words, width, hops = graph.num_features, self.width, self.num_hops
        passes = sum(range(hops + 1))
        last = hops * words * width + SPARSE_COST * (USUAL_EDGES * words * passes + USUAL_WORDS * width)
        first = SPARSE_COST * (USUAL_EDGES * (words * hops + width * passes) + USUAL_WORDS * width * (hops + 1))
        return replace(self, multiplies_first=first < last)

    @property
    def is_made(self) -> bool:
        """Whether rows are made beforehand: else the model is given features and edges."""
        return self.num_hops > 0 or self.is_stacked

    def num_stacked(self, num_features: int) -> int:
        """Columns before they are mapped."""
        return num_features * (self.num_hops + 1 if self.is_stacked else 1)

    def num_columns(self, num_features: int) -> int:
        """Columns of the model's input for a store with so many features."""
        return self.width or self.num_stacked(num_features)

    def map_bytes(self, num_features: int) -> int:
        """Memory of the random numbers where they are held."""
        return 0 if self.multiplies_first else 4 * self.num_stacked(num_features) * self.width

    def reading_bytes(self, num_features: int) -> int:
        """Memory of a few rows while they are made, with the random numbers: the stacked row twice, its products."""
        if not self.is_stacked:
            return 0
        if self.multiplies_first:
            return PRODUCT_ROWS * 4 * (self.width + BLOCK_COLUMNS)
        made = PRODUCT_ROWS * 4 * (3 * self.num_stacked(num_features) + 2 * self.num_columns(num_features))
        return self.map_bytes(num_features) + made

    def plan(
        self,
        graph: GraphStore,
        *,
        norm: Norm,
        room_bytes: int,
        threads: int,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        made_dense: bool = False,
    ) -> StagePlan:
        """What passing the features along needs, and the rows of every number of hops in a file."""
        if self.multiplies_first and not made_dense:
            return plan_projection(
                graph.num_nodes if num_nodes is None else max(num_nodes, 1),
                graph.num_edges if num_edges is None else num_edges,
                graph.num_features,
                self.num_hops,
                self.width,
                room_bytes=room_bytes,
            )
        hops = range(1 if self.is_stacked else self.num_hops, self.num_hops + 1)
        plans = [
            plan_k_hops(
                graph,
                count,
                norm=norm,
                room_bytes=room_bytes,
                threads=threads,
                num_nodes=num_nodes,
                num_edges=num_edges,
                made_dense=made_dense,
            )
            for count in hops
        ]
        return largest("infer", plans) if plans else StagePlan("infer", 0, "the features as they are")
