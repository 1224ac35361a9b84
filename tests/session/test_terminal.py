"""Progress as people see it: bars in a real terminal, plain lines in a file."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress as Display

from ecgl_scale.base.events import EpochFinished, StageStarted, StepStarted, TaskFinished, TaskStarted
from ecgl_scale.cli.progress import _Bars
from tests.faults.running import cli_command, start_child
from tests.session.streams import write_config

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
KEYS = ("--set", "learn.epochs=3", "--set", "method=finetune")


@pytest.fixture
def config(store: Path, cache: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "run.yaml", store, cache=str(cache), tasks={"eval_scope": "both"})


def test_into_a_file_go_plain_lines_without_control_characters(config: Path, tmp_path: Path) -> None:
    child = start_child(_say_to, (str(tmp_path / "said"),), "run", config, "--out", tmp_path / "run", *KEYS)
    child.join(250)
    said = (tmp_path / "said").read_text()
    assert child.exitcode == 0, said
    assert not CONTROL.search(said)
    lines = [line.partition(" ")[2] for line in said.splitlines()]
    assert any(re.fullmatch(r"task 2 of 3, train: [\d.]+ s, peak .* of .* planned", line) for line in lines)
    assert [line for line in lines if "learned" in line] == [
        line for line in lines if re.fullmatch(r"task \d of 3 learned: AA [\d.]+, seen [\d.]+", line)
    ]


def _say_to(path: str) -> None:
    """In a child: both streams go to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_terminal_shows_tasks_stage_amount_rate_and_memory_of_the_plan(config: Path, tmp_path: Path) -> None:
    """Eighty columns: nothing is cut off or wrapped."""
    tmux = ("tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null")
    keys = ("--set", "learn.epochs=400", *KEYS[2:])
    command = cli_command("run", config, "--out", tmp_path / "run", *keys)
    line = f"{shlex.join(command)}; echo $? > {shlex.quote(str(tmp_path / 'code'))}; sleep 600"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "30", line], check=True, timeout=60)
    try:
        seen = _watch(tmux, tmp_path / "code")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=60, capture_output=True)
    assert (tmp_path / "code").read_text().strip() == "0", seen[-1]
    together = "\n".join(seen)
    memory = r"[\d.]+ MiB of [\d.]+ MiB planned"
    assert re.search(rf"^task [123] of 3 +[━╸╺]+ +{memory}", together, re.MULTILINE)
    assert re.search(r"^train +[━╸╺]+ +[\d,]+ of 400 epochs +[\d.,]+/s +.*s left", together, re.MULTILINE)
    assert re.search(rf"^task 1 of 3: AA [\d.]+, .*s, peak {memory}$", seen[-1], re.MULTILINE)
    assert "…" not in together


def test_a_run_does_not_end_before_what_goes_on_now() -> None:
    """A task that is larger than those before it takes longer than they did."""
    with Display(console=Console(file=io.StringIO())) as display:
        bars = _Bars(display)
        for event in (TaskStarted(0, 2), TaskFinished(0, 2, (90.0,)), TaskStarted(1, 2), StepStarted("train")):
            bars(event)
        bars(StageStarted("train task 1", 100_000, "epochs"))
        for epoch in range(3):
            time.sleep(0.02)
            bars(EpochFinished(1, epoch, 0.5, 0.02))
        of_run, of_stage = display.tasks
        assert of_run.fields["left"] == of_stage.fields["left"] != "< 1 s left"
        assert (of_run.description, of_stage.description) == ("task 2 of 2", "train")


def _watch(tmux: tuple[str, ...], code: Path) -> list[str]:
    """What the pane shows until the run has ended."""
    seen, deadline = [], time.monotonic() + 250
    while time.monotonic() < deadline:
        has_ended = code.exists()
        shown = subprocess.run([*tmux, "capture-pane", "-p"], check=True, timeout=60, capture_output=True, text=True)
        seen.append(shown.stdout)
        if has_ended:
            break
        time.sleep(0.05)
    return seen
