"""The face of a backend: who sums and multiplies the rows of a block."""

from __future__ import annotations

from typing import Protocol

from ecgl_scale.infer.chunks import Target
from ecgl_scale.infer.program import Pass
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.infer.source_block import SourceBlock


class Backend(Protocol):
    """Works on one block after the other."""

    name: str

    def begin(self, layer_pass: Pass, source_width: int) -> None:
        """The blocks that follow belong to this pass; their sources have so many columns."""
        ...

    def take_source(self, source: Matrix) -> None:
        """The blocks that follow are over this source."""
        ...

    def end(self) -> None:
        """The pass is over: let go of its source."""
        ...

    def aggregate(self, block: SourceBlock, out: Matrix) -> None:
        """P times the source, for the rows of the block; ``out`` has a row for each of them."""
        ...

    def run(self, block: SourceBlock, target: Target) -> None:
        """P times the source and the dense work on it, written to the target."""
        ...
