"""Native allocations of a run, by memray: every malloc with its stack, through Python, numba, torch and C.

It makes a run about twice as slow and takes memory of its own, which the plan does not count: for looking, not for
measuring. ``memory.jsonl`` has the peaks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ecgl_scale.errors import UsageError
from ecgl_scale.run.events import EventSink, Note

CAPTURE_NAME = "memray.bin"
PAGE_NAME = "memray.html"
DRAW_SECONDS = 600
"""Finding the names of all native functions takes a while; the results are written before."""


def require_memray() -> None:
    """Refuse before anything is begun where memray is not installed."""
    if find_spec("memray") is None:
        raise UsageError("memray is not installed", where="--memray", fix="pip install 'ecgl-scale[profile]'")


@contextmanager
def native_profile(directory: Path, on_event: EventSink) -> Iterator[None]:
    """Record all allocations inside into ``directory``; those of an earlier process are replaced.

    The flame graph is drawn where the run ends well: one that is asked to stop has no time for it.
    """
    import memray

    capture = directory / CAPTURE_NAME
    with memray.Tracker(destination=memray.FileDestination(capture, overwrite=True), native_traces=True):
        yield
    _draw(capture, directory / PAGE_NAME, on_event)


def _draw(capture: Path, page: Path, on_event: EventSink) -> None:
    """A flame graph, made by memray's own command; the capture stays in any case."""
    options = ["--force", "--no-web", "--output", str(page)]
    command = [sys.executable, "-m", "memray", "flamegraph", *options, str(capture)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DRAW_SECONDS)
    except subprocess.TimeoutExpired:
        on_event(Note(f"native allocations: {capture}; no flame graph within {DRAW_SECONDS} s"))
        return
    if done.returncode == 0:
        on_event(Note(f"native allocations: {capture}, {page}"))
    else:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        on_event(Note(f"native allocations: {capture}; no flame graph: {reason}"))
