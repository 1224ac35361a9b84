"""The command as a user runs it, in this process or in a child that can be killed; and what it may leave behind."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.warm.process import warm_context

RENAMES = ("rename", "replace", "link")
"""What gives a file its name."""


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run_cli(*arguments: object) -> Ran:
    """Run ``ecgl`` in this process: the real entry point, without the second that a new process takes to start."""
    from ecgl_scale.cli.main import main

    stdout, stderr = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    code: object = 0
    try:
        with (
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            mock.patch.object(sys, "argv", ["ecgl", *map(str, arguments)]),
        ):
            main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ran(code if isinstance(code, int) else 0 if code is None else 1, stdout.getvalue(), stderr.getvalue())


def cli_command(*arguments: object) -> list[str]:
    """The same as a command line."""
    return [sys.executable, "-m", "ecgl_scale.cli.main", *map(str, arguments)]


def run_process(*arguments: object, under: tuple[str, ...] = ()) -> Ran:
    """Run ``ecgl`` in a process of its own, perhaps under a tracer."""
    done = subprocess.run([*under, *cli_command(*arguments)], capture_output=True, text=True, timeout=120, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def start_child(
    prepare: Callable[..., None] | None, settings: tuple[Any, ...], *arguments: object
) -> ForkServerProcess:
    """Start ``ecgl`` in a child with everything imported already; ``prepare(*settings)`` runs in it first."""
    child = warm_context().Process(
        target=_run_child, args=(prepare, settings, [str(argument) for argument in arguments])
    )
    child.start()
    return child


def _run_child(prepare: Callable[..., None] | None, settings: tuple[Any, ...], arguments: list[str]) -> None:
    from ecgl_scale.cli.main import main

    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    if prepare is not None:
        prepare(*settings)
    sys.argv = ["ecgl", *arguments]
    main()


def kill_at_rename(number: int) -> None:
    """In a child: die at a rename, a replacement or a link, before it is done."""
    done = 0

    def dying(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    for name in RENAMES:
        setattr(os, name, dying(getattr(os, name)))


def copy_at_calls(patch: pytest.MonkeyPatch, names: tuple[str, ...], folder: Path, copies: Path) -> list[Path]:
    """Copy ``folder`` before each call of these functions of ``os``, as a kill would leave it; returns the copies."""
    taken: list[Path] = []

    def taking(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            taken.append(copies / f"{len(taken):03}")
            shutil.copytree(folder, taken[-1])
            return function(*arguments, **named)

        return call

    for name in names:
        patch.setattr(os, name, taking(getattr(os, name)))
    return taken


def leftovers(folder: Path) -> list[str]:
    """Names a build may use beside its target and must not leave there."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def file_checksums(store: Path) -> dict[str, Any]:
    """What the manifest says of every file: equal for stores of equal bytes."""
    files: dict[str, Any] = json.loads((store / "manifest.json").read_text())["files"]
    return files


def write_graph(path: Path, *, nodes: int = 3000, edges: int = 9000, seed: int = 0, **replaced: Any) -> Path:
    """A small graph with features, labels and one more column; ``None`` leaves an array out."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "edge_index": rng.integers(0, nodes, (2, edges)),
        "x": rng.normal(size=(nodes, 8)).astype(np.float32),
        "y": np.arange(nodes) % 7,
        "year": rng.integers(1990, 2020, nodes),
        **replaced,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def inject(what: str) -> tuple[str, ...]:
    """A command prefix that lets the kernel do ``what`` at a system call; skips where tracing is not allowed."""
    strace = ("strace", "-f", "-qq", "-o", os.devnull)
    if subprocess.run([*strace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("strace may not trace here")
    calls = what.partition(":")[0]
    return (*strace, "-e", f"trace={calls}", "-e", f"inject={what}")
