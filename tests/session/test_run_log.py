"""``run.log``: what a run said, whoever listened."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.base.events import Note
from ecgl_scale.errors import StorageError
from ecgl_scale.session.learner import Learner
from ecgl_scale.session.run import run
from ecgl_scale.session.run_log import RunLog
from tests.cli_runner import run_cli
from tests.faults.running import start_child
from tests.session.streams import FEW_EPOCHS, config_of, write_config

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ")
LIGHT = (FEW_EPOCHS, "method=finetune")


def said(path: Path) -> str:
    return (path / "run.log").read_text()


def lines_of(path: Path) -> list[str]:
    """Without the moments and the lines that belong to the one before."""
    return [MOMENT.sub("", line) for line in said(path).splitlines() if MOMENT.match(line)]


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Lets the second task fail."""

    def stop_with(error: BaseException) -> None:
        def fail(self: Learner, task: Any) -> None:
            if task.index == 1:
                raise error

        monkeypatch.setattr(Learner, "remember", fail)

    return stop_with


def test_a_run_from_python_tells_its_plan_steps_tasks_and_end(store: Path, cache: Path, tmp_path: Path) -> None:
    results = run(config_of(store, cache, *LIGHT, "tasks.eval_scope=both"), tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    assert lines[0].startswith(f"begins: finetune on {store} (plus, class-il, seed 0); ecgl_scale ")
    assert lines[1] == "plan"
    assert "  peak " in said(tmp_path / "run")
    for step in ("extract", "train", "evaluate"):
        pattern = rf"task 2 of 3, {step}: [\d.]+ s, peak [\d.,]+ [MG]iB of [\d.,]+ [MG]iB planned"
        assert any(re.fullmatch(pattern, line) for line in lines), step
    assert f"task 3 of 3 learned: AA {results['aa']:.1f}, seen {results['aa_seen']:.1f}" in lines
    seen = f"seen AA {results['aa_seen']:.1f}, AF {results['af_seen']:.1f}"
    assert lines[-1] == f"finished: AA {results['aa']:.1f}, AF {results['af']:.1f}; {seen}"


@pytest.mark.parametrize("arguments", [("--quiet",), ("--no-progress",), ()])
@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_shown_elsewhere_changes_nothing(
    store: Path, cache: Path, tmp_path: Path, arguments: tuple[str, ...], terminal: bool
) -> None:
    config = write_config(tmp_path / "run.yaml", store, cache=str(cache), method="finetune")
    keys = ("--set", "learn.epochs=1")
    assert run_cli(*arguments, "run", config, "--out", tmp_path / "run", *keys, terminal=terminal).code == 0
    assert [line.split(":")[0] for line in lines_of(tmp_path / "run")] == [
        "begins",
        "plan",
        *[
            f"task {task} of 3{end}"
            for task in (1, 2, 3)
            for end in (", extract", ", train", ", remember", ", evaluate", " learned")
        ],
        "finished",
    ]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said(tmp_path / "run"))


def test_notes_from_before_the_directory_was_there_are_in_it(store: Path, cache: Path, tmp_path: Path) -> None:
    heard: list[Any] = []
    config = config_of(store, cache, *LIGHT, "tasks.class_order=[5, 3, 1, 0]")
    run(config, tmp_path / "run", on_event=heard.append)
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert len(notes) == len(set(notes)) == 2
    assert set(notes) <= set(lines_of(tmp_path / "run"))


def test_an_error_is_there_with_its_whole_message_and_a_resumed_run_appends(
    store: Path, cache: Path, tmp_path: Path, stopping: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping(StorageError("the disk refused: it burns", where="here", fix="pour water"))
    config = config_of(store, cache, *LIGHT)
    with pytest.raises(StorageError):
        run(config, tmp_path / "run")
    before = said(tmp_path / "run")
    assert before.endswith("error: the disk refused: it burns\n  where: here\n  fix: pour water\n")
    monkeypatch.undo()
    run(config, tmp_path / "run", resume=True)
    assert said(tmp_path / "run").startswith(before)
    again = lines_of(tmp_path / "run")[len(before.splitlines()) - before.count("\n  ") :]
    assert again[0].startswith("goes on with task 2, remember, after epoch 3: finetune on ")
    assert again[-1].startswith("finished: ")


def test_a_bug_leaves_its_trace(
    store: Path, cache: Path, tmp_path: Path, stopping: Callable[[BaseException], None]
) -> None:
    stopping(ZeroDivisionError("by nothing"))
    with pytest.raises(ZeroDivisionError):
        run(config_of(store, cache, *LIGHT), tmp_path / "run")
    assert "error: ZeroDivisionError: by nothing\n  Traceback" in said(tmp_path / "run")
    assert "in _learn_tasks" in said(tmp_path / "run")


def test_ctrl_c_is_told(store: Path, cache: Path, tmp_path: Path, stopping: Callable[[BaseException], None]) -> None:
    stopping(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(config_of(store, cache, *LIGHT), tmp_path / "run")
    assert lines_of(tmp_path / "run")[-1] == "stopped by Ctrl-C"


def test_a_killed_run_leaves_what_it_said(store: Path, cache: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", store, cache=str(cache), method="finetune")
    child = start_child(_wait_in_task_1, (), "run", config, "--out", tmp_path / "run", "--set", "learn.epochs=1")
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "waits").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.pid is not None
    child.kill()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert lines_of(tmp_path / "run")[-1].startswith("task 2 of 3, train: ")


def _wait_in_task_1() -> None:
    """In a child: it never ends."""

    def wait(self: Learner, task: Any) -> None:
        if task.index == 1:
            (self.directory / "waits").touch()
            time.sleep(60)

    Learner.remember = wait  # type: ignore[method-assign]


def test_a_torn_line_is_ended_and_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("2026-01-01T00:00:00+00:00 task 1 of")
    with RunLog(path) as log:
        log.say("more")
    assert [MOMENT.sub("", line) for line in path.read_text().splitlines()] == ["task 1 of", "more"]
    with RunLog(Path("/dev/full")) as log:
        log.say("nobody reads this")
