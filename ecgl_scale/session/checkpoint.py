"""Weights and optimizer on disk while training goes on.

Two files take turns, and the state names the finished one, so a kill at any moment leaves one that is whole. An epoch
is saved when the one before has been written and a second has passed: a kill costs one epoch, or a second of short
ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.session.state import RunState

Tensors = dict[str, NDArray[Any]]
"""Arrays by name: copies, which nobody changes while they are written."""

WEIGHTS_DIRECTORY = "weights"
NAMES = ("checkpoint-0.safetensors", "checkpoint-1.safetensors")
SECONDS_BETWEEN = 1.0


def load_checkpoint(directory: Path, state: RunState) -> Tensors | None:
    """The tensors that belong to the state of a run directory; None before the first epoch."""
    if state.checkpoint is None:
        return None
    arrays, about = load_tensors(directory / WEIGHTS_DIRECTORY / state.checkpoint)
    if about.get("place") != state.checkpoint_place:
        raise InvalidInputError(
            f"a checkpoint is of {about.get('place')}, the state of {state.checkpoint_place}",
            where=directory,
            fix="start the run anew in another directory",
        )
    return arrays


class Checkpoints:
    """Saves a run's tensors and state together."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / WEIGHTS_DIRECTORY).mkdir(exist_ok=True)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[RunState] | None = None
        self._last = time.monotonic()
        self._turn = 0

    def load(self, state: RunState) -> Tensors | None:
        """The tensors that belong to a state; the next are written beside them."""
        if state.checkpoint is not None:
            self._turn = 1 - NAMES.index(state.checkpoint)
        return load_checkpoint(self._directory, state)

    def offer(self, state: RunState, tensors: Callable[[], Tensors]) -> None:
        """Save if the last save is over and some time has passed; returns at once."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN and (self._writing is None or self._writing.done()):
            self._start(state, tensors())

    def save(self, state: RunState, tensors: Tensors) -> RunState:
        """Save now; returns the state as written."""
        return self._start(state, tensors).result()

    def wait(self) -> None:
        """Wait for what is being written; raises what went wrong there."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _start(self, state: RunState, tensors: Tensors) -> Future[RunState]:
        self.wait()
        name, self._turn = NAMES[self._turn], 1 - self._turn
        self._last = time.monotonic()
        self._writing = self._pool.submit(self._write, state, name, tensors)
        return self._writing

    def _write(self, state: RunState, name: str, tensors: Tensors) -> RunState:
        place = f"task {state.task}, epoch {state.epoch}"
        save_tensors(self._directory / WEIGHTS_DIRECTORY / name, tensors, about={"place": place})
        state = replace(state, checkpoint=name, checkpoint_place=place)
        state.write(self._directory)
        return state

    def close(self) -> None:
        """Wait for what is being written and end the writer's thread."""
        self._pool.shutdown()
