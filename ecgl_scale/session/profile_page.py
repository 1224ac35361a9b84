"""The flame graph of a memray capture, native frames between Python's: ``python -m ecgl_scale.session.profile_page``.

memray pairs the Python frames of a stack with the C frames that ran them, and asserts that they match. Of some stacks
they do not (an allocation made while tracing began, on another thread), and ``memray flamegraph`` draws nothing then.
Such a stack has its C frames alone here; all others are as memray draws them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


class _Record:
    """A record of memray's, whose stack is never refused."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def hybrid_stack_trace(self, max_stacks: int | None = None) -> list[tuple[str, str, int]]:
        """Python's and C's frames, innermost first."""
        given = () if max_stacks is None else (max_stacks,)
        try:
            return list(self._record.hybrid_stack_trace(*given))
        except AssertionError:
            return list(self._record.native_stack_trace(*given))


def draw(capture: Path, page: Path) -> None:
    """Write the page, which loads nothing from the network."""
    import memray
    from memray.reporters.flamegraph import FlameGraphReporter

    with memray.FileReader(capture) as reader:
        records = map(_Record, reader.get_high_watermark_allocation_records(merge_threads=True))
        reporter = FlameGraphReporter.from_snapshot(
            records,  # type: ignore[arg-type]  # by its attributes
            memory_records=tuple(reader.get_memory_snapshots()),
            native_traces=reader.metadata.has_native_traces,
        )
        with page.open("w", encoding="utf-8") as file:
            reporter.render(file, reader.metadata, False, True, inverted=False, no_web=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
