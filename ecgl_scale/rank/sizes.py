"""What the plans of a ranking know of features, which may not be there yet; and a need that follows the budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ecgl_scale.rank.feature_files import Features
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore

IN_PLACE_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))
"""Arrays in row order of which diversity needs no copy."""


class Need(NamedTuple):
    """Memory of a stage that takes what the budget allows: with the least it reads its input more often."""

    least: int
    most: int

    def within(self, room_bytes: int, *, besides: int = 0) -> int:
        """What it takes of so much room, together with what is held ``besides``."""
        return min(max(self.least + besides, room_bytes), self.most + besides)


@dataclass(frozen=True)
class FeatureSizes:
    """Sizes of features in a store or in memory."""

    num_rows: int
    num_columns: int
    num_values: int | None = None
    """Stored values of sparse features; None of dense ones."""
    itemsize: int = 4
    chunk_bytes: int = 0
    """What a reader of stored dense rows holds; 0 for an array."""
    is_float32: bool = False
    """Whether an array can be worked on as float32 where it is."""
    is_in_place: bool = False
    """Whether diversity uses an array where it is."""

    @property
    def stored_bytes(self) -> int:
        """What one pass reads of features in a store."""
        if self.num_values is None:
            return self.itemsize * self.num_rows * self.num_columns
        return 8 * (self.num_rows + self.num_values)

    @classmethod
    def stored(cls, num_rows: int, num_columns: int, num_values: int | None) -> FeatureSizes:
        """Features of a store that is yet to be written; dense ones as float32."""
        if num_values is not None or not num_columns:
            return cls(num_rows, num_columns, num_values)
        features = DenseFeatures(Path(), DenseLayout.plan(num_rows, num_columns), ())
        return cls(num_rows, num_columns, chunk_bytes=features.chunk_buffer_bytes)

    @classmethod
    def of(cls, features: Features, graph: GraphStore | None = None) -> FeatureSizes:
        """Features that are there; sparse ones are those of the graph."""
        if isinstance(features, np.ndarray):
            is_in_order = features.flags.c_contiguous
            return cls(
                num_rows=features.shape[0],
                num_columns=features.shape[1],
                is_float32=is_in_order and features.dtype == np.float32,
                is_in_place=is_in_order and features.dtype in IN_PLACE_DTYPES,
            )
        if isinstance(features, SparseFeatures):
            section = None if graph is None else graph.manifest.features
            return cls(features.num_rows, features.num_features, 0 if section is None else section.num_values)
        chunk_bytes, itemsize = features.chunk_buffer_bytes, features.dtype.itemsize
        return cls(features.num_rows, features.num_features, itemsize=itemsize, chunk_bytes=chunk_bytes)
