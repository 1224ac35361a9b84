"""Faults in real workers, by a script: Dask loads this file into every worker that tests start.

How often each block of each work was begun is in a file for each, so that workers that were killed are counted too.
What is to happen when a block is begun for the first, second, … time is in a file that tests write.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "ECGL_TEST_SCRIPT"
ENVIRONMENT = {"DASK_DISTRIBUTED__WORKER__PRELOAD": '["tests.engine.cluster.script"]'}


@dataclass(frozen=True)
class Script:
    """What happens to blocks, below a directory that all workers see."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What worker processes are started with."""
        return {**ENVIRONMENT, VARIABLE: str(self.directory)}

    def begin(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def plan(self, work: str, index: int, actions: str | Sequence[str | None]) -> None:
        """Say what each begin of a block is to meet; one action for all of them, or one after the other."""
        path = self.directory / f"{work}-{index}.json"
        path.with_suffix(".new").write_text(json.dumps(actions))
        path.with_suffix(".new").replace(path)

    def heal(self) -> None:
        """Let nothing happen any more."""
        for path in self.directory.glob("*.json"):
            path.unlink()

    def times_begun(self, work: str, index: int) -> int:
        """How often a block was begun."""
        path = self._counter(work, index)
        return path.stat().st_size if path.exists() else 0

    def begun(self, work: str) -> dict[int, int]:
        """How often each block of a work was begun."""
        return {int(path.name): path.stat().st_size for path in (self.directory / work).glob("*")}

    def works(self) -> set[str]:
        """Which works were begun."""
        return {path.name for path in self.directory.iterdir() if path.is_dir()}

    def _counter(self, work: str, index: int) -> Path:
        return self.directory / work / str(index)

    def meet(self, work: str, index: int) -> None:
        """Count a begin, and let happen what was planned for it."""
        path = self._counter(work, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b".")
            number = file.tell() - 1
        try:
            actions = json.loads((self.directory / f"{work}-{index}.json").read_text())
        except FileNotFoundError:
            return
        action = actions if isinstance(actions, str) else actions[number] if number < len(actions) else None
        if action is not None:
            _act(action)


def _act(action: str) -> None:
    kind, _, argument = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "sleep":
        time.sleep(float(argument))
    elif kind == "errno":
        raise OSError(getattr(errno, argument), os.strerror(getattr(errno, argument)))
    elif kind == "raise":
        raise RuntimeError(argument)
    else:
        raise AssertionError(action)


def dask_setup(worker: Any) -> None:
    """In a worker: meet the script before every block."""
    from ecgl_scale.engine import work as work_module
    from ecgl_scale.engine.block import Block
    from ecgl_scale.engine.local import LocalWorkers
    from tests.engine.cluster.fake_cluster import HOME, NAME

    del worker
    work_module.WORKS[NAME] = HOME
    script, run_one = Script(Path(os.environ[VARIABLE])), LocalWorkers._run_one

    def scripted(workers: LocalWorkers[Any], block: Block, given: Any) -> Any:
        script.meet(workers._work.name, block.index)
        return run_one(workers, block, given)

    LocalWorkers._run_one = scripted  # type: ignore[method-assign]
