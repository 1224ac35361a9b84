"""Native allocations of a run, by memray: every malloc with its stack, through Python, numba, torch and C.

It makes a run about twice as slow and takes memory of its own, which the plan does not count: for looking, not for
measuring. ``memory.jsonl`` has the peaks.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
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
    """A flame graph of the capture, which stays in any case.

    For a run that has ended well: one that is asked to stop has no time for it. memray cannot draw native frames
    between Python's where a library was built without them (an AssertionError of its own); Python's alone are drawn
    then, and ``memray table`` and ``memray stats`` still read the capture.
    """
    capture, page = directory / CAPTURE_NAME, directory / PAGE_NAME
    command = [sys.executable, "-m", "memray", "flamegraph", "--force", "--no-web", "--output", str(page), str(capture)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DRAW_SECONDS)
    except subprocess.TimeoutExpired:
        on_event(Note(f"native allocations: {capture}; no flame graph within {DRAW_SECONDS} s"))
        return
    if done.returncode == 0:
        on_event(Note(f"native allocations: {capture}, {page}"))
        return
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    try:
        _draw_python_frames(capture, page)
    except Exception as error:  # a picture that cannot be drawn must not fail the run
        on_event(Note(f"native allocations: {capture}; no flame graph: {reason}, {type(error).__name__}"))
    else:
        on_event(Note(f"native allocations: {capture}, {page} (Python frames only: {reason})"))


def _draw_python_frames(capture: Path, page: Path) -> None:
    import memray
    from memray.reporters.flamegraph import FlameGraphReporter

    with memray.FileReader(capture) as reader:
        reporter = FlameGraphReporter.from_snapshot(
            reader.get_high_watermark_allocation_records(merge_threads=True),
            memory_records=tuple(reader.get_memory_snapshots()),
            native_traces=False,
        )
        with page.open("w", encoding="utf-8") as file:
            reporter.render(file, reader.metadata, False, True, inverted=False, no_web=True)
