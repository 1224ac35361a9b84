"""A run of a sweep as work on the engine: an ``ecgl run`` in a process of its own, on whichever machine is free.

The kernel kills the run when the process that waits for it is killed (``cli/child.py``). Where that process is on
another machine it listens to the sweep's heartbeat, and stops the run when the sweep has stopped or is gone.
A run that fails is no failed block: its exit code is the record. One that was lost with its worker goes on from its
own directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ecgl_scale.base.heartbeat import Listener
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import EcglError, InvalidInputError, LockedError
from ecgl_scale.session.directory import CONFIG_NAME, LOCK_NAME, read_results
from ecgl_scale.session.state import RunState
from ecgl_scale.session.sweep.sweep_plan import Share

CHILD = ("-m", "ecgl_scale.cli.child")
"""What Python runs, followed by the number of the process that waits for it."""
HEARTBEAT_NAME = ".heartbeat"
SEED_PREFIX = "seed-"
POLL_SECONDS = 0.05
LISTEN_SECONDS = 1.0
STOP_SECONDS = 15.0
"""A run that has not ended so long after SIGTERM is killed; SLURM waits 30 s before it kills us."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    exit_code: int
    seconds: float


class RunWork(Work[None, RunEnd]):
    """Runs of a sweep; block i is the i-th of its names. A worker has one at a time, which uses all that it has."""

    name: ClassVar[str] = "sweep.run"
    record: ClassVar[type[Any]] = RunEnd
    uses_all_threads: ClassVar[bool] = True
    has_small_records: ClassVar[bool] = True
    in_any_order: ClassVar[bool] = True

    def __init__(
        self,
        out: Path,
        names: Sequence[str],
        is_stopped: threading.Event,
        *,
        token: str | None = None,
        share: Share | None = None,
    ) -> None:
        self._out = out
        self._names = names
        self._is_stopped = is_stopped
        self._token = token
        self._share = share or Share(None, None)
        self._folder: Path | None = None
        """Where a run is started, as paths in its config may be relative; None stands for where this process is."""

    def describe(self) -> Json:
        """The sweep's directory, the runs below it, whose heartbeat to listen to, and what paths are relative to."""
        names = list(self._names)
        return {"out": str(self._out), "names": names, "token": self._token, "folder": str(Path.cwd())}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> RunWork:
        """Ready where this is called: a run may use what the worker has left."""
        share = Share(max(resources.room_bytes, 1), resources.threads)
        opened = cls(
            Path(description["out"]), description["names"], threading.Event(), token=description["token"], share=share
        )
        folder = Path(description["folder"])
        opened._folder = folder if folder.is_dir() else None
        return opened

    def run(self, block: Block, given: Json, scratch: None) -> RunEnd:
        """Run it to its end, unless it has come there already."""
        del given, scratch
        started = time.monotonic()
        path = self._out / self._names[block.index]
        listener = None if self._token is None else Listener(self._out / HEARTBEAT_NAME, self._token)
        if listener is not None:
            _await_earlier(path)
        code = 0 if has_finished(path) else self._run_process(path, listener)
        return RunEnd(code, time.monotonic() - started)

    def _run_process(self, path: Path, listener: Listener | None) -> int:
        process: subprocess.Popen[bytes] | None = None
        heard_at = time.monotonic()
        try:
            with uninterrupted():  # or nobody would know of the process
                process = self._start(path)
            while process.poll() is None and not self._is_stopped.is_set():
                time.sleep(POLL_SECONDS)
                if listener is not None and time.monotonic() - heard_at >= LISTEN_SECONDS:
                    heard_at = time.monotonic()
                    if not listener.is_alive:
                        break
        finally:
            if process is not None:
                with uninterrupted():
                    _stop(process)
        return process.wait()

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        seed = path.name.removeprefix(SEED_PREFIX)
        arguments = ["run", str(path.parent / CONFIG_NAME), "--out", str(path), "--resume"]
        for override in (f"seed={seed}", *self._share.overrides()):
            arguments += ["--set", override]
        with log_of(path).open("ab") as output:
            # A session of its own: Ctrl-C reaches us alone, and we stop the run.
            return subprocess.Popen(
                [sys.executable, *CHILD, str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
            )


class RunsHere(RunWork):
    """Runs of a sweep on this machine, as many at a time as the sweep has threads, each with its share."""

    uses_all_threads: ClassVar[bool] = False


def log_of(run: Path) -> Path:
    """The file for what a run says, beside its directory."""
    return run.with_suffix(".log")


def has_finished(run: Path) -> bool:
    """Whether a run has its results. Damage is left for the run itself to report."""
    try:
        state = RunState.read(run)
    except InvalidInputError:
        return False
    return state is not None and state.is_finished and read_results(run) is not None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that still goes."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_earlier(run: Path) -> None:
    """Wait for a process of a sweep that is gone, until it has heard of that and let go of the run's directory."""
    deadline = time.monotonic() + STOP_SECONDS + 2 * LISTEN_SECONDS
    while run.exists() and time.monotonic() < deadline:
        try:
            os.close(take_lock(run / LOCK_NAME, target=run))
        except LockedError:
            time.sleep(LISTEN_SECONDS)
        except (EcglError, OSError):
            return  # the run itself will say what is wrong
        else:
            return
