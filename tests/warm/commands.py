"""``ecgl`` and ``python`` for scripts of the shell, sweeps and benchmarks: each asks this process for a warm one.

What they start is a stand-in. It gives its arguments, environment, folder and open streams, passes signals on, and ends
as the warm process ends. When it is killed, so is the warm process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from bench.harness import ecgl as harness_ecgl
from ecgl_scale.cli import run as cli_run
from ecgl_scale.session.sweep import run_work
from tests.warm.process import WarmProcess

PROGRAMS = {"ecgl": "ecgl", "python": "python", "child": "ecgl"}
"""What each stand-in starts; ``child`` is for sweeps, which give their own number first."""
STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
if "{name}" == "child":
    del sys.argv[1]  # the process that waits, which sees to the end of this one
if "{name}" == "python" and (not sys.argv[1:] or sys.argv[1].startswith("-")):
    os.execv("{python}", ["python", *sys.argv[1:]])
signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
ignored = [int(number) for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
asked = ["{program}", sys.argv[1:], dict(os.environ), os.getcwd(), ignored]
link = socket.socket(socket.AF_UNIX)
link.connect("{address}")
socket.send_fds(link, [b"streams"], [0, 1, 2])
link.sendall(json.dumps(asked).encode() + b"\\n")
answers = link.makefile("r")
process = int(answers.readline())
for number in PASSED_ON:
    if int(number) not in ignored:
        signal.signal(number, lambda number, _: os.kill(process, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
code = int(answers.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture(scope="session")
def warm_commands() -> Iterator[Path]:
    """A folder for the front of ``PATH``."""
    folder = Path(tempfile.mkdtemp(prefix="ecgl-warm-"))  # not below pytest's: a socket's path has 107 bytes
    address = folder / "link"
    (folder / "bin").mkdir()
    for name, program in PROGRAMS.items():
        path = folder / "bin" / name
        about = {"python": sys.executable, "name": name, "program": program, "address": address}
        path.write_text(STAND_IN.format(**about), encoding="utf-8")
        path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        accepting = threading.Thread(target=_accept, args=(server, folder / "bin"), daemon=True)
        accepting.start()
        yield folder / "bin"
        server.shutdown(socket.SHUT_RDWR)
        accepting.join()
    shutil.rmtree(folder)


@pytest.fixture
def warm_runs(warm_commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps of this process start warm runs, and first ranks warm others."""
    for module in (run_work, cli_run):
        monkeypatch.setattr(module, "CHILD", (str(warm_commands / "child"),))


@pytest.fixture
def warm_bench(warm_commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks start warm commands, whose memory is not seen; workers are started where their machine is."""

    def ecgl(*arguments: str) -> list[str]:
        command = harness_ecgl(*arguments)
        return command if arguments[0] == "worker" else [str(warm_commands / "ecgl"), *command[1:]]

    for name, module in list(sys.modules.items()):
        if name.startswith("bench.") and getattr(module, "ecgl", None) is harness_ecgl:
            monkeypatch.setattr(module, "ecgl", ecgl)


def _accept(server: socket.socket, commands: Path) -> None:
    while True:
        try:
            link, _ = server.accept()
        except OSError:  # it was shut down
            return
        threading.Thread(target=_serve, args=(link, commands), daemon=True).start()


def _serve(link: socket.socket, commands: Path) -> None:
    """Start what is asked for, and say how it ended."""
    with link:
        _, streams, _, _ = socket.recv_fds(link, len(b"streams"), 3)
        with link.makefile("rb") as asked:
            program, arguments, environment, directory, ignored = json.loads(asked.readline())
        process = WarmProcess(
            *arguments,
            program=program,
            environment=environment,
            directory=Path(directory),
            ignored=ignored,
            run_of_sweep=commands / "child",
            streams=streams,
        )
        for stream in streams:
            os.close(stream)
        link.sendall(b"%d\n" % process.pid)
        if link in wait([process.sentinel, link]) and process.poll() is None:
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        try:
            link.sendall(b"%d\n" % code)
        except BrokenPipeError:  # the stand-in was killed
            return
