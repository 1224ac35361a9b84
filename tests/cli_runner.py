"""Runs ``ecgl`` in this process as a shell would: arguments in, exit code and both streams out."""

from __future__ import annotations

import io
import logging
import signal
import sys
from dataclasses import dataclass

import pytest

from ecgl_scale.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str


class _Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def run_cli(*arguments: object, terminal: bool = False) -> Result:
    """Call ``main`` with these arguments; signal handlers and the logger are as before afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    logger = logging.getLogger("ecgl_scale")
    before = (logger.handlers[:], logger.level, logger.propagate)
    stdout, stderr = _Stream(is_terminal=terminal), _Stream(is_terminal=terminal)
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ecgl", *map(str, arguments)])
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            logger.handlers[:], logger.level, logger.propagate = before
            logger.setLevel(before[1])
    return Result(code if isinstance(code, int) else int(code is not None), stdout.getvalue(), stderr.getvalue())
