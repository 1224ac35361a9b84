"""A sign of life in a file, so that what was started on another machine ends when nobody waits for it any more.

Whoever waits writes the file again every few seconds, with a name of its own and a number; whoever works looks whether
it changes. Clocks of two machines are never compared. The file is there from the first moment on, and it is opened
anew each time, which asks the server of a network file system.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from ecgl_scale.base.durable import atomic_file
from ecgl_scale.errors import EcglError

EVERY_SECONDS = 2.0
SILENT_SECONDS = 60.0
"""Whoever has written nothing for so long is taken for dead: a busy server of files may hold back that much."""
ENDED = "ended"


class Heartbeat:
    """Writes the file until ``has_ended`` is set or the ``with`` ends, and then that it has ended."""

    def __init__(self, path: Path, has_ended: threading.Event, *, every_seconds: float = EVERY_SECONDS) -> None:
        self.path = path
        self.token = os.urandom(8).hex()
        self._every_seconds = every_seconds
        self._has_ended = has_ended
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._write("0")
        self._thread.start()
        return self

    def _beat(self) -> None:
        count = 0
        while not self._has_ended.wait(self._every_seconds):
            count += 1
            with suppress(EcglError):  # a full disk may have room again before we are taken for dead
                self._write(str(count))
        with suppress(EcglError):
            self._write(ENDED)

    def _write(self, text: str) -> None:
        with atomic_file(self.path, is_durable=False) as partial:  # a machine that fell is silent too
            partial.write_text(f"{self.token} {text}", encoding="ascii")

    def __exit__(self, *failure: object) -> None:
        self._has_ended.set()
        self._thread.join()


class Listener:
    """Hears whether the one of ``token`` is alive."""

    def __init__(self, path: Path, token: str, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._path = path
        self._token = token
        self._silent_seconds = silent_seconds
        self._said = ""
        self._heard_at = time.monotonic()

    @property
    def is_alive(self) -> bool:
        """False where it has ended, was replaced by another, or has been silent for too long."""
        try:
            said = self._path.read_text(encoding="ascii")
        except OSError:
            said = self._said  # as if it were silent
        if said != self._said:
            self._said, self._heard_at = said, time.monotonic()
        token, _, count = said.partition(" ")
        is_other = bool(said) and (token != self._token or count == ENDED)
        return not is_other and time.monotonic() - self._heard_at < self._silent_seconds
