"""A ranking's finished sweeps on disk, so that a killed one goes on where it was.

Two vector files take turns, and ``journal.json`` names the newer one with its checksum; it is replaced atomically
after the vector is durable. Saving runs beside the next sweep. Sweeps that take less than ``SAVE_EVERY_SECONDS`` are
not all saved: a kill then costs that much time at most.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import DurableWriter, crc32c_of, storage_errors, write_atomically

SAVE_EVERY_SECONDS = 1.0
NAME = "journal.json"


@dataclass(frozen=True)
class FinishedSweeps:
    """Where to go on."""

    ranks: NDArray[np.float64]
    iteration: int
    residual: float


class NoJournal:
    """For rankings nobody will resume."""

    def load(self, num_nodes: int) -> FinishedSweeps | None:
        """Nothing was kept."""
        del num_nodes
        return None

    def save(self, ranks: NDArray[np.float64], iteration: int, residual: float) -> None:
        """Keep nothing."""

    def wait(self) -> None:
        """Nothing is under way."""


class RankJournal:
    """Keeps sweeps in ``directory``; ``identity`` says which store and settings they belong to."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        self._directory = directory
        self._identity = json.loads(json.dumps(identity))
        self._background = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._pending: Future[None] | None = None
        self._saved_at = time.monotonic()
        self._turn = 0

    def load(self, num_nodes: int) -> FinishedSweeps | None:
        """The last saved sweep of this very ranking; None where there is none, or it is damaged."""
        try:
            entry = json.loads((self._directory / NAME).read_text(encoding="utf-8"))
            if entry.pop("check") != _check_of(entry) or entry["identity"] != self._identity:
                return None
            content = (self._directory / entry["file"]).read_bytes()
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        if len(content) != num_nodes * 8 or crc32c_of(content) != entry["crc32c"]:
            return None
        self._turn = int(entry["file"] == "ranks-1")  # the next one goes to the other file
        return FinishedSweeps(np.frombuffer(content, np.float64), int(entry["iteration"]), float(entry["residual"]))

    def save(self, ranks: NDArray[np.float64], iteration: int, residual: float) -> None:
        """Begin to keep this sweep; ``ranks`` may not change until ``wait``."""
        if time.monotonic() - self._saved_at < SAVE_EVERY_SECONDS:
            return
        self._saved_at = time.monotonic()
        self._pending = self._background.submit(self._write, ranks, iteration, residual)

    def _write(self, ranks: NDArray[np.float64], iteration: int, residual: float) -> None:
        self._turn = 1 - self._turn
        name = f"ranks-{self._turn}"
        path = self._directory / name
        with storage_errors(path):
            # Not before there is something to keep: a ranking that is refused leaves nothing behind.
            self._directory.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        with DurableWriter(path) as writer:
            writer.write(ranks)
            written = writer.finish()
        entry = {
            "identity": self._identity,
            "file": name,
            "crc32c": written.crc32c,
            "iteration": iteration,
            "residual": residual,
        }
        write_atomically(self._directory / NAME, json.dumps(entry | {"check": _check_of(entry)}, indent=1) + "\n")

    def wait(self) -> None:
        """Wait until what was begun is durable."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        """Stop the background thread; what is being saved is finished first."""
        self._background.shutdown(wait=True)


def _check_of(entry: dict[str, Any]) -> int:
    """A flipped digit of the residual would end a ranking too early."""
    return crc32c_of(json.dumps(entry, sort_keys=True).encode())
