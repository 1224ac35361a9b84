"""What passes between ``ecgl forget`` and a method whose state is a sum over rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.resources import Resources
from ecgl_scale.tasks.forgotten import Forgotten


@dataclass(frozen=True, eq=False)
class RowChange:
    """Rows of a class, as they were learned and as they would have been without the forgotten nodes."""

    position: int
    """The place of the class in the head."""
    part: str
    """train or valid."""
    removed: NDArray[np.float32]
    """Rows of forgotten nodes, and of nodes near them as they were."""
    added: NDArray[np.float32]
    """Rows of the nodes near them as they are now."""


@dataclass(frozen=True, eq=False)
class Forgot:
    """What a method whose state is a sum over rows has done to forget some."""

    num_rows: int
    """Rows of forgotten nodes that were subtracted."""
    head: NDArray[np.float64]
    """[input, classes]: the model's last layer, as it is without them."""


class Forgetting(Protocol):
    """What such a method is told and given to forget."""

    @property
    def config(self) -> RunConfig:
        """The settings of the model."""
        ...

    @property
    def gone(self) -> Forgotten:
        """What is forgotten."""
        ...

    @property
    def before(self) -> Path:
        """Where its ``kept_files`` are."""
        ...

    @property
    def after(self) -> Path:
        """Where those of the new model go."""
        ...

    @property
    def resources(self) -> Resources:
        """What it may use."""
        ...

    def changes(self) -> Iterator[RowChange]:
        """Rows of the model's input that are others without the forgotten nodes."""
        ...
