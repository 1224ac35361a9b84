"""``ecgl`` in a process of its own, forked from a server that has imported everything and run nothing of it.

It starts in a tenth of a second; a new interpreter takes seconds to import torch and numba. Signals, exit codes, open
files and all that it leaves behind are a process's own. That the installed command itself starts is tested elsewhere.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

WARM_MODULES = [
    "ecgl_scale.cli.main",
    "ecgl_scale.store.graph",
    "ecgl_scale.store.sources.npz",
    "ecgl_scale.session.run",
    "ecgl_scale.session.sweep.run_work",
    "zarr",
    "tests.warm.imports",
]
"""Loaded once in the fork server, which runs none of it."""
READ_BYTES = 65536
ROOT = Path(__file__).parents[2]


@cache
def warm_context() -> ForkServerContext:
    """The server of this process's children, started where it finds ``tests``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM_MODULES)
    with chdir(ROOT):
        forkserver.ensure_running()
    return context


class WarmProcess:
    """A program that was started, seen as ``subprocess.Popen`` shows one; its stderr is kept for ``communicate``.

    ``streams`` are descriptors that become its stdin, stdout and stderr; then there is nothing to communicate. If it
    is a sweep, it starts its runs as ever, or by ``run_of_sweep``.
    """

    def __init__(
        self,
        *arguments: object,
        program: str = "ecgl",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        is_leader: bool = False,
        ignored: Sequence[int] = (),
        run_of_sweep: Path | None = None,
        streams: Sequence[int] | None = None,
    ) -> None:
        context = warm_context()
        self._said, given = (None, streams) if streams is not None else self._new_streams()
        inherited = [Connection(os.dup(stream)) for stream in given]
        self._process = context.Process(
            target=_become,
            args=(
                program,
                [str(argument) for argument in arguments],
                {**os.environ, **(environment or {})} if streams is None else dict(environment or {}),
                str(directory or Path.cwd()),
                is_leader,
                list(ignored),
                run_of_sweep,
                inherited,
            ),
        )
        self._process.start()
        for connection in inherited:
            connection.close()
        if streams is None:
            for stream in set(given):
                os.close(stream)

    def _new_streams(self) -> tuple[int, list[int]]:
        nothing, (said, stderr) = os.open(os.devnull, os.O_RDWR), os.pipe()
        return said, [nothing, nothing, stderr]

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """Becomes readable when it ends."""
        return self._process.sentinel

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("ecgl", timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """Nothing, and all that it and its children have said on stderr."""
        deadline, said = time.monotonic() + timeout, b""
        while self._said is not None:
            ready, _, _ = select.select([self._said], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise subprocess.TimeoutExpired("ecgl", timeout, stderr=said)
            more = os.read(self._said, READ_BYTES)
            said += more
            if not more:
                os.close(self._said)
                self._said = None
        self.wait(max(deadline - time.monotonic(), 0.0))
        return "", said.decode()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become(
    program: str,
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
    is_leader: bool,
    ignored: list[int],
    run_of_sweep: Path | None,
    streams: list[Connection],
) -> None:
    """In the child: be what a shell would have started."""
    if is_leader:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (as long as the process)
    for signal_number in ignored:
        signal.signal(signal_number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, places), *(place for place in sys.path if place and place not in places)]
    if run_of_sweep is not None:
        from ecgl_scale.session.sweep import run_work

        run_work.CHILD = (str(run_of_sweep),)
    try:
        _run(program, arguments)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves without it


def _run(program: str, arguments: list[str]) -> None:
    if program == "ecgl":
        from ecgl_scale.cli.main import main

        sys.argv = ["ecgl", *arguments]
        main()
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
