"""METIS's cut of a graph, kept in a file: it takes a process and the whole graph in memory, and a run asks for the same
cut after every task.

``DIGEST-PARTS.metis.npy`` has a part number for each node. Any cut gives right results, so a file that is missing or
damaged only means that the graph is cut once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import atomic_file
from ecgl_scale.store.graph import GraphStore


@dataclass(frozen=True)
class KeptCuts:
    """Cuts of one graph."""

    directory: Path
    digest: str
    """The graph's identity, shortened."""

    @classmethod
    def of(cls, graph: GraphStore, directory: Path) -> KeptCuts:
        """Those of a graph, by what is in it."""
        return cls(directory, graph.identity[:24])

    def load(self, count: int, num_nodes: int) -> NDArray[np.int32] | None:
        """The cut into ``count`` parts, where there is one."""
        try:
            parts = np.load(self._path(count), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        fits = parts.shape == (num_nodes,) and parts.dtype == np.int32 and num_nodes
        return parts if fits and parts.min() >= 0 and parts.max() < count else None

    def save(self, count: int, parts: NDArray[np.int32]) -> None:
        """Keep a cut; another process may be keeping the same."""
        path = self._path(count)
        with atomic_file(path, needed_bytes=parts.nbytes, is_shared=True) as partial, partial.open("wb") as file:
            np.save(file, parts, allow_pickle=False)

    def _path(self, count: int) -> Path:
        return self.directory / f"{self.digest}-{count}.metis.npy"
