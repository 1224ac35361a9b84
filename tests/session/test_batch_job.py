"""The script that ``ecgl slurm`` writes, run from its submission to its results by commands that stand in for SLURM's.

Its run is warned before the time is up three times: the job goes back into the queue twice, once by what ``state.json``
says, as the exit code was lost on its way, and once by the code; then no requeue is allowed, and another job goes on.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ecgl_scale.session.state import RunState
from ecgl_scale.units import MIB, parse_bytes
from tests.cli_runner import run_cli
from tests.session.streams import events_of, read_json, without_clocks

pytestmark = pytest.mark.faults

FAKES = Path(__file__).parent / "fake_slurm"
NUM_TASKS = 3
PATIENCE_SECONDS = 60.0


def learned_tasks(run: Path) -> set[int]:
    """The tasks of which at least an epoch was learned."""
    return {event["task"] for event in events_of(run, "EpochFinished")} if (run / "events.jsonl").exists() else set()


class FakeSlurm:
    """Runs submitted jobs one after the other, each again while it is requeued, and warns their steps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("FAKE_SLURM", str(folder))
        path = os.pathsep.join([str(FAKES), str(Path(sys.executable).parent), os.environ["PATH"]])
        monkeypatch.setenv("PATH", path)

    def submit(self, script: Path) -> None:
        subprocess.run(["sbatch", script], check=True, capture_output=True, timeout=10)

    def attempts(self, stop_when: Any) -> Iterator[tuple[int, int, int]]:
        """Job, number of its attempt and exit code of every attempt; ``stop_when`` says when its time is nearly up."""
        job, attempt = 1, 0
        while (self.folder / f"job-{job}").exists():
            code = self._run(job, attempt, stop_when)
            yield job, attempt, code
            requeued = self.folder / f"requeued-{job}"
            job, attempt = (job, attempt + 1) if requeued.exists() else (job + 1, 0)
            requeued.unlink(missing_ok=True)

    def _run(self, job: int, attempt: int, stop_when: Any) -> int:
        script = self.folder / f"job-{job}"
        steps = self.folder / "steps"
        steps.unlink(missing_ok=True)
        environment = os.environ | environment_of(script, job, attempt)
        with (self.folder / f"log-{job}").open("ab") as log:
            started = subprocess.Popen(["bash", script], env=environment, stdout=log, stderr=log)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while started.poll() is None and not stop_when() and time.monotonic() < deadline:
                time.sleep(0.01)
            for process in steps.read_text().split() if steps.exists() and started.poll() is None else ():
                os.kill(int(process), signal.SIGUSR2)
            return started.wait(PATIENCE_SECONDS)


def environment_of(script: Path, job: int, attempt: int) -> dict[str, str]:
    asked = dict(
        word.removeprefix("--").partition("=")[::2]
        for line in script.read_text().splitlines()
        if line.startswith("#SBATCH ")
        for word in shlex.split(line)[1:]
    )
    assert {"requeue", "open-mode", "signal", "time"} <= asked.keys()
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_RESTART_COUNT": str(attempt),
        "SLURM_MEM_PER_NODE": str(parse_bytes(asked["mem"]) // MIB),
        "SLURM_JOB_PARTITION": "long",
    }


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = run_cli(
        *("--quiet", "generate", "sbm", "graph.ecgl", "--nodes", 1200, "--classes", 2 * NUM_TASKS, "--features", 16)
    )
    assert made.code == 0, made.stderr
    path = tmp_path / "run.yaml"
    learn = {"hidden": [64], "epochs": 200, "device": "cpu"}
    tasks = {"classes_per_task": 2}
    path.write_text(yaml.safe_dump({"store": "graph.ecgl", "tasks": tasks, "learn": learn, "bank": {"budget": 20}}))
    return path


def test_a_job_goes_through_requeues_and_another_job_to_the_results_of_an_undisturbed_run(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = FakeSlurm(tmp_path / "slurm", monkeypatch), tmp_path / "runs" / "run"
    written = run_cli("slurm", config, "--time", "00:10:00", "--cores", "1")
    assert written.code == 0, written.stderr
    (tmp_path / "job.sbatch").write_text(written.stdout)
    fake.submit(tmp_path / "job.sbatch")
    places, attempts = [], []
    lost, forbidden = fake.folder / "loses-codes", fake.folder / "no-requeue"
    lost.touch()

    def is_time_up() -> bool:
        """In the task of the attempt's number: the fourth learns the last of them to its end."""
        return len(attempts) < NUM_TASKS and len(attempts) in learned_tasks(run)

    for attempt in fake.attempts(is_time_up):
        attempts.append(attempt)
        state = RunState.read(run)
        assert state is not None, (fake.folder / "log-1").read_text()
        places.append((state.task, state.stopped))
        lost.unlink(missing_ok=True)
        if len(attempts) == NUM_TASKS - 1:
            forbidden.touch()
    assert attempts == [(1, 0, 1), (1, 1, 75), (1, 2, 75), (2, 0, 0)], (fake.folder / "log-1").read_text()
    assert places == [*((task, "stopped by SIGUSR2") for task in range(NUM_TASKS)), (NUM_TASKS, "")]
    assert "--dependency=afterany:1 --partition=long" in (fake.folder / "asked-2").read_text()

    undisturbed = tmp_path / "undisturbed"
    assert run_cli("--quiet", "run", config, "--out", undisturbed, "--set", "threads=1").code == 0
    assert without_clocks(read_json(run / "results.json")) == without_clocks(read_json(undisturbed / "results.json"))


def test_without_a_batch_system_kill_stops_the_run_of_a_script_and_the_same_script_goes_on(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    written = run_cli("slurm", config, "--system", "shell", "--out", "a run", "--time", "01:00:00")
    (tmp_path / "job.sh").write_text(written.stdout)
    with (tmp_path / "log").open("ab") as log:
        started = subprocess.Popen(["bash", "job.sh"], stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not learned_tasks(tmp_path / "a run") and time.monotonic() < deadline:
            time.sleep(0.01)
        started.terminate()
        assert started.wait(PATIENCE_SECONDS) == 75, (tmp_path / "log").read_text()
        assert "start this script again" in (tmp_path / "log").read_text()
        assert not (tmp_path / "a run" / "results.json").exists()
        again = subprocess.run(["bash", "job.sh"], stdout=log, stderr=log, timeout=PATIENCE_SECONDS, check=False)
    assert again.returncode == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "a run" / "results.json").exists()
