"""Warm processes are what a shell would have started: arguments, environment, folder, streams, codes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm.process import WarmProcess

WAITS = "import os, pathlib, time\npathlib.Path('begun').write_text(str(os.getpid()))\ntime.sleep(60)\n"


def begun(folder: Path) -> int:
    """The process of a script that waits, as soon as it does."""
    wait_until(lambda: (folder / "begun").exists() and bool((folder / "begun").read_text()))
    return int((folder / "begun").read_text())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shell(commands: Path, script: str, folder: Path) -> subprocess.Popen[str]:
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_has_its_exit_code_and_its_words() -> None:
    process = WarmProcess("info", "none.ecgl")
    _, said = process.communicate()
    assert process.returncode == 3
    assert "none.ecgl" in said


def test_a_script_has_streams_folder_environment_and_path_of_its_shell(warm_commands: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "given.py").write_text("")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(
        "import atexit, given, importlib.util, os, sys\n"
        "atexit.register(print, 'the end')\n"
        "print(sys.argv, os.environ['HERE'], os.getcwd(), sys.stdin.read(), importlib.util.find_spec('beside'))\n"
        "sys.exit(7)\n"
    )
    script = "echo -n in | HERE=there PYTHONPATH=library python scripts/script.py 'a b' | sed s/^/out:/"
    process = shell(warm_commands, f"set -o pipefail; {script}", tmp_path)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (7, "")
    assert said.splitlines() == [f"out:['scripts/script.py', 'a b'] there {tmp_path} in None", "out:the end"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_to_the_stand_in_reaches_the_process_and_its_end_is_the_stand_ins(
    warm_commands: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    process = shell(warm_commands, "exec python script.py", tmp_path)
    waiting = begun(tmp_path)
    assert waiting != process.pid
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    assert not Path(f"/proc/{waiting}").exists()


def test_with_a_stand_in_that_is_killed_its_process_ends(warm_commands: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    process = shell(warm_commands, "exec python script.py", tmp_path)
    waiting = begun(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not Path(f"/proc/{waiting}").exists())


def test_a_killed_process_says_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    process = WarmProcess("script.py", program="python", directory=tmp_path, is_leader=True)
    assert begun(tmp_path) == process.pid == os.getpgid(process.pid)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
