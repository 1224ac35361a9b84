"""Native allocations of a run, by memray: every malloc with its stack, through Python, numba, torch and C.

It makes a run slower, stages of many small calls many times, and takes memory of its own, which the plan does not
count: for looking, not for measuring. ``memory.jsonl`` has the peaks.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

from ecgl_scale.base.events import EventSink, Note
from ecgl_scale.errors import UsageError

CAPTURE_NAME = "memray.bin"
PAGE_NAME = "memray.html"
DRAW_SECONDS = 600
"""The most that drawing may take: finding the names of all native functions is slow, and the results are written."""


def require_memray() -> None:
    """Refuse before anything is begun where memray is not installed."""
    if find_spec("memray") is None:
        raise UsageError("memray is not installed", where="--memray", fix="pip install 'ecgl-scale[profile]'")


def tracked(directory: Path) -> AbstractContextManager[object]:
    """Record all allocations inside into ``directory``; those of an earlier process are replaced.

    memray's own context manager and no generator around it: memray would miss the first call made inside, and could
    not draw such stacks.
    """
    import memray

    capture = memray.FileDestination(directory / CAPTURE_NAME, overwrite=True)
    tracker: AbstractContextManager[object] = memray.Tracker(destination=capture, native_traces=True)
    return tracker


def draw_profile(directory: Path, on_event: EventSink) -> None:
    """Draw a flame graph of the capture, which stays in any case.

    It is drawn for a run that has ended well: one that is asked to stop has no time for it. A process of its own draws
    it, since memray needs as much memory as the capture is large, and a picture that fails must not fail the run.
    """
    capture, page = directory / CAPTURE_NAME, directory / PAGE_NAME
    command = [sys.executable, "-m", "ecgl_scale.session.profile_page", str(capture), str(page)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DRAW_SECONDS)
    except subprocess.TimeoutExpired:
        on_event(Note(f"native allocations: {capture}; no flame graph within {DRAW_SECONDS} s"))
        return
    if done.returncode == 0:
        on_event(Note(f"native allocations: {capture}, {page}"))
        return
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    on_event(Note(f"native allocations: {capture}; no flame graph: {reason}"))
