"""METIS's cut of a graph, made in a process of its own and kept in a file.

It takes the whole graph in that process's memory, and a run asks for the same cut after every task.
``DIGEST-PARTS.metis.npy`` has a part number for each node. Any cut gives right results, so a file that is missing or
damaged only means that the graph is cut once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import fsync_directory, storage_errors
from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.errors import UsageError
from ecgl_scale.store.graph import GraphStore

MAX_SECONDS = 3600.0
BYTES_PER_EDGE = 128
"""DGL 1.1.3 took 101 at ten million edges: int64 edges, their symmetric copy and METIS's coarser graphs."""

Parts = NDArray[np.int32]


@dataclass(frozen=True)
class Metis:
    """Cuts one graph."""

    graph: GraphStore
    scratch: Path
    """Where the process leaves what it has found."""
    budget: MemoryBudget
    kept_in: Path | None = None
    """Where cuts are kept for the next time; nowhere without."""

    def parts(self, count: int) -> Parts:
        """A part number for each node, kept or new; whatever happens to the process does not happen to us.

        Raises
        ------
        UsageError
            DGL is not installed, or METIS died or took too long.
        DoesNotFitError
            The process would need more than the budget.
        """
        parts = self._load(count)
        if parts is None:
            parts = run_metis(self, count)
            self._save(count, parts)
        return parts

    def _load(self, count: int) -> Parts | None:
        if self.kept_in is None:
            return None
        try:
            parts = np.load(self._path(self.kept_in, count), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        fits = parts.shape == (self.graph.num_nodes,) and parts.dtype == np.int32 and parts.size
        return parts if fits and parts.min() >= 0 and parts.max() < count else None

    def _save(self, count: int, parts: Parts) -> None:
        """Keep a cut; another process may be keeping the same."""
        if self.kept_in is None:
            return
        path = self._path(self.kept_in, count)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with storage_errors(path, needed_bytes=parts.nbytes):
            try:
                with partial.open("wb") as file:
                    np.save(file, parts, allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
                fsync_directory(path.parent)
            finally:
                partial.unlink(missing_ok=True)

    def _path(self, directory: Path, count: int) -> Path:
        return directory / f"{self.graph.identity[:24]}-{count}.metis.npy"


def run_metis(metis: Metis, count: int) -> Parts:
    """Start the process, wait for it and read what it has found."""
    if find_spec("dgl") is None:
        raise UsageError(
            "METIS comes with DGL, which is not installed here",
            fix="pip install dgl==1.1.3 (Python 3.11 or older), or partitioner: ldg",
        )
    metis.budget.require(
        metis.graph.num_edges * BYTES_PER_EDGE,
        stage="METIS",
        formula=f"{BYTES_PER_EDGE} bytes an edge, in a process of its own; partitioner: ldg needs 8 a node",
    )
    with storage_errors(metis.scratch):
        metis.scratch.mkdir(parents=True, exist_ok=True)
    target = metis.scratch / "metis.npy"
    module = "ecgl_scale.graph.metis_process"
    command = [sys.executable, "-m", module, str(metis.graph.path), str(count), str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
        if done.returncode != 0 or not target.is_file():
            raise _failed(f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['silent'])[-1]}")
        parts = np.load(target, allow_pickle=False)
    except subprocess.TimeoutExpired as error:
        raise _failed(f"was not done after {MAX_SECONDS:.0f} s") from error
    finally:
        target.unlink(missing_ok=True)
    if parts.shape != (metis.graph.num_nodes,) or parts.dtype.kind != "i":
        raise _failed(f"gave {parts.dtype} {parts.shape}")
    return np.asarray(parts, np.int32)


def _failed(how: str) -> UsageError:
    return UsageError(f"METIS {how}", fix="partitioner: ldg, or contiguous; METIS needs the whole graph in memory")
