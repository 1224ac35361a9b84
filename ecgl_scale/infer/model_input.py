"""What a model is given of a node: its features, or rows that are made of them beforehand.

    raw          x itself; the model passes its own hidden values along the edges
    propagated   P^k x
    stacked      [x, P x, ..., P^k x], each part brought to length one
    mapped       relu(stacked R), R normal numbers drawn from a seed, ``width`` columns of them

Rows that are made beforehand need no message passing at a test: the model is a plain function of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecgl_scale.engine.plan import StagePlan, largest
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.infer.hops import plan_k_hops
from ecgl_scale.infer.random_features import PRODUCT_ROWS
from ecgl_scale.store.graph import GraphStore


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
        """Memory of the random numbers."""
        return 4 * self.num_stacked(num_features) * self.width

    def reading_bytes(self, num_features: int) -> int:
        """Memory of a few rows while they are made, with the random numbers: the stacked row twice, its products."""
        if not self.is_stacked:
            return 0
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
