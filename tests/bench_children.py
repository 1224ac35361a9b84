"""Benchmarks give every candidate a process of its own; here they share one, as each takes seconds to load DGL."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module

import pytest

from bench.harness import Measured, run_measured


def run_here(*, but_not: str | None = None) -> Callable[[Sequence[str]], Measured]:
    """As ``run_measured``, but in this process; ``ecgl`` and the candidate named are started as they always are."""

    def run(command: Sequence[str]) -> Measured:
        if "--child" not in command or but_not in command:
            return run_measured(command)
        _, _, module, *arguments = command
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
            patch.setattr(sys, "argv", [module, *arguments])
            import_module(module).main()
        return Measured(1.0, 1, 0, said.getvalue())

    return run
