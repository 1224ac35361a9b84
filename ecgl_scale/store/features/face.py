"""What dense and sparse features of a store have in common: everything that most callers need.

Rows come dense or as CSR whichever way they are stored, so a caller asks ``is_sparse`` only where another way of
computing pays, and ``kind``, by which the type checker tells the two apart, where it needs what only one of them has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.engine.block import Block
from ecgl_scale.store.source import CsrBlock, FloatArray

FeatureKind = Literal["dense", "sparse"]


class FeatureStore(ABC):
    """Rows of numbers on disk, compared with the manifest as they are read."""

    kind: FeatureKind
    directory: AnyPath
    """The folder of the features in their store, wherever that is."""
    num_rows: int
    num_features: int
    num_values: int
    """Values that are stored: all of a dense matrix, those that are not zero of a sparse one."""
    dtype: np.dtype[np.floating[Any]]
    num_dropped: int = 0
    """Rows of nodes that are no longer in the graph: they are zeros, and count for nothing."""
    store: str
    """The address of the store they belong to, by which another process finds them."""

    def __init__(self, blocks: list[Block], files: Sequence[WrittenFile]) -> None:
        self._blocks = blocks
        self._files = files

    @property
    def is_sparse(self) -> bool:
        """Whether zeros are left out."""
        return self.kind == "sparse"

    @property
    def stored_bytes(self) -> int:
        """Size of the files that hold the rows."""
        return sum(file.size_bytes for file in self._files)

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of a row on disk: of every one, or of an average one where they differ."""

    @property
    @abstractmethod
    def rows_per_read(self) -> int:
        """Rows that are read together where one of them is wanted: a chunk, or a block."""

    @property
    @abstractmethod
    def block_bytes(self) -> int:
        """Memory of ours that a block takes as it is stored: 0 where it is mapped."""

    def blocks(self) -> list[Block]:
        """All blocks, in row order."""
        return list(self._blocks)

    def block_of(self, row: int) -> Block:
        """The block that a row is in."""
        return self._blocks[bisect_right(self._blocks, row, key=lambda block: block.start) - 1]

    @abstractmethod
    def read_dense(self, block: Block, out: Any = None) -> FloatArray:
        """Rows of one block with their zeros, in ``dtype``, into ``out`` where given."""

    @abstractmethod
    def read_csr(self, block: Block) -> CsrBlock:
        """Rows of one block without their zeros."""

    @abstractmethod
    def rows_dense(self, ids: Any, *, threads: int = 2) -> FloatArray:
        """Rows ``ids`` with their zeros, in that order, repeats allowed."""

    @abstractmethod
    def rows_csr(self, ids: Any) -> CsrBlock:
        """Rows ``ids`` without their zeros, in that order, repeats allowed."""

    @abstractmethod
    def read_columns(self, block: Block, first: int, stop: int, out: NDArray[Any]) -> None:
        """Columns ``first`` up to ``stop`` of a block's rows, into ``out``. Memory: a few MiB, or one row."""

    @abstractmethod
    def count_values(self, ids: Any) -> int:
        """How many values ``rows_csr(ids)`` has at most, without reading them. Memory: 24 bytes an id."""
