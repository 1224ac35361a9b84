"""``run.log``: what a run said, for people, whoever started it and wherever its stderr went.

The plan, a line for every step and task and for every 30 s of a long step, notes, and how it ended: an error with its
whole message, and with its trace where it is not one of ours. Every line is written when it is said, so a kill loses
none. A process that resumes the run appends. A log that cannot be written stops no run.
"""

from __future__ import annotations

import os
import socket
import threading
import traceback
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType

from ecgl_scale._version import __version__
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import Event, EventSink, ignore_events
from ecgl_scale.base.progress import PlainLines
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import EcglError, StopRequestedError
from ecgl_scale.session.state import RunState

LOG_NAME = "run.log"


class RunLog:
    """Writes events from ``__enter__`` to ``__exit__``, and passes them on."""

    def __init__(self, path: Path, then: EventSink = ignore_events) -> None:
        self._then = then
        self._lines = PlainLines(self.say)
        self._lock = threading.Lock()
        with storage_errors(path):
            self._file = path.open("ab", buffering=0)

    def __call__(self, event: Event) -> None:
        """Write what a person should know of an event, and pass the event on."""
        self._lines(event)
        self._then(event)

    def say(self, text: str) -> None:
        """Write a line, or several of which the others are indented."""
        moment = datetime.now().astimezone().isoformat(timespec="seconds")
        with self._lock, suppress(OSError):
            self._file.write(f"{moment} {text}\n".encode(errors="replace"))

    def write_event(self, event: Event) -> None:
        """Write an event and do not pass it on: everybody else has had it already."""
        self._lines(event)

    def begin(self, config: RunConfig, state: RunState, plan: MemoryPlan) -> None:
        """Say whose log it is, where the run goes on, and the plan."""
        is_new = state.task == 0 and state.epoch == 0 and state.step == "train"
        place = "begins" if is_new else f"goes on with task {state.task + 1}, {state.step}, after epoch {state.epoch}"
        what = f"{config.method} on {config.store} ({config.preset}, {config.setting}, seed {config.seed})"
        self.say(f"{place}: {what}; ecgl_scale {__version__}, process {os.getpid()} on {socket.gethostname()}")
        self.say("plan\n  " + str(plan).replace("\n", "\n  "))

    def __enter__(self) -> RunLog:
        with suppress(OSError):
            self._end_torn_line()
        return self

    def _end_torn_line(self) -> None:
        """End the last line, which a process that lost its power may have left without its end."""
        path = Path(self._file.name)
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(size - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                self._file.write(b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EcglError | StopRequestedError):
            self.say(f"error: {error}")
        elif isinstance(error, KeyboardInterrupt):
            self.say("stopped by Ctrl-C")
        elif error is not None:
            shown = "".join(traceback.format_exception(error)).rstrip()
            self.say(f"error: {type(error).__name__}: {error}\n  " + shown.replace("\n", "\n  "))
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()
