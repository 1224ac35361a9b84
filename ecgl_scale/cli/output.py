"""What the commands say and how: JSON on stdout, messages and progress on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NoReturn

from ecgl_scale.base.events import Event, EventSink, Note

_log = logging.getLogger("ecgl_scale.progress")


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least severe of the messages that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": moment, "level": record.levelname.lower(), "message": record.getMessage()})


@dataclass(frozen=True)
class Output:
    """The user's choices about output, carried by every command."""

    quiet: bool
    show_progress: bool
    log_format: LogFormat
    level: int

    def set_up_logging(self) -> None:
        """Log to stderr in the chosen form."""
        handler = logging.StreamHandler(sys.stderr)
        text = logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")
        handler.setFormatter(_JsonLines() if self.log_format is LogFormat.JSON else text)
        logger = logging.getLogger("ecgl_scale")
        logger.handlers[:] = [handler]
        logger.setLevel(self.level)
        logger.propagate = False

    @contextmanager
    def progress(self) -> Iterator[EventSink]:
        """A subscriber for a job's events: bars on a terminal, a plain line every 30 s elsewhere."""
        if not self.show_progress:
            yield log_warnings
            return
        from ecgl_scale.cli.progress import progress_sink

        with progress_sink(bars=sys.stderr.isatty() and self.log_format is LogFormat.TEXT) as sink:
            yield sink


def log_warnings(event: Event) -> None:
    """Log warnings and show no progress: the subscriber without bars and lines. --quiet hides warnings too."""
    if isinstance(event, Note) and event.is_warning:
        _log.warning("%s", event.text)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(value, indent=2))


def print_table(rows: Mapping[str, object]) -> None:
    """Print names and values in two columns."""
    width = max((len(name) for name in rows), default=0)
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def print_columns(rows: Sequence[Sequence[str]], *, num_left: int) -> None:
    """Print rows in columns that are as wide as they must be; all but the first ``num_left`` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        shown = (text.ljust(width) if n < num_left else text.rjust(width) for n, (text, width) in enumerate(cells))
        print("  ".join(shown).rstrip())


def fail(message: str, code: int) -> NoReturn:
    """Print an error and exit."""
    print(f"ecgl: error: {message}", file=sys.stderr)
    sys.exit(code)
