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
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

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

    def __init__(self, folder: Path, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("FAKE_SLURM", str(folder))
        path = os.pathsep.join([str(FAKES), str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        monkeypatch.setenv("PATH", path)

    def submit(self, *arguments: object) -> None:
        """What a user does: write the script, and give it to sbatch."""
        written = run_cli("slurm", *arguments, "--time", "00:10:00", "--cores", "1")
        assert written.code == 0, written.stderr
        (self.folder / "script").write_text(written.stdout)
        subprocess.run(["sbatch", self.folder / "script"], check=True, capture_output=True, timeout=10)

    def said(self) -> str:
        """All that jobs have said."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def attempts(self, is_time_up: Callable[[int], bool]) -> Iterator[tuple[int, int, int]]:
        """Job, restarts and exit code of every attempt, whose number says to ``is_time_up`` which it is."""
        job, attempt, number = 1, 0, 0
        while (self.folder / f"job-{job}").exists():
            code = self._run(job, attempt, partial(is_time_up, number))
            yield job, attempt, code
            number += 1
            requeued = self.folder / f"requeued-{job}"
            job, attempt = (job, attempt + 1) if requeued.exists() else (job + 1, 0)
            requeued.unlink(missing_ok=True)

    def _run(self, job: int, attempt: int, is_time_up: Callable[[], bool]) -> int:
        script = self.folder / f"job-{job}"
        steps = self.folder / "steps"
        steps.unlink(missing_ok=True)
        environment = os.environ | environment_of(script, job, attempt)
        with (
            (self.folder / f"log-{job}").open("ab") as log,
            subprocess.Popen(["bash", script], env=environment, stdout=log, stderr=log) as started,
        ):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while started.poll() is None and not is_time_up() and time.monotonic() < deadline:
                time.sleep(0.01)
            for process in steps.read_text().split() if steps.exists() and started.poll() is None else ():
                with suppress(ProcessLookupError):  # it has ended since, as workers do when their driver has
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
        # all nodes are this machine
        "SLURM_MEM_PER_NODE": str(int(asked["nodes"]) * parse_bytes(asked["mem"]) // MIB),
        "SLURM_JOB_PARTITION": "long",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph, a config, and its run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("batch")
    size = ("--nodes", 1200, "--classes", 2 * NUM_TASKS, "--features", 16)
    assert run_cli("--quiet", "generate", "sbm", folder / "graph.ecgl", *size).code == 0
    config = {
        "store": str(folder / "graph.ecgl"),
        "tasks": {"classes_per_task": 2},
        "learn": {"hidden": [64], "epochs": 200, "device": "cpu"},
        "bank": {"budget": 20},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    undisturbed = ("run", folder / "run.yaml", "--out", folder / "undisturbed", "--set", "threads=1")
    assert run_cli("--quiet", *undisturbed).code == 0
    return folder


@pytest.fixture
def fake(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_commands: Path) -> FakeSlurm:
    monkeypatch.chdir(tmp_path)
    return FakeSlurm(tmp_path / "slurm", warm_commands, monkeypatch)


def check_results(run: Path, undisturbed: Path) -> None:
    found, wanted = (without_clocks(read_json(path / "results.json")) for path in (run, undisturbed))
    assert {name: value for name, value in found.items() if name != "workers"} == wanted


def test_a_job_goes_through_requeues_and_another_job_to_the_results_of_an_undisturbed_run(
    folder: Path, fake: FakeSlurm
) -> None:
    fake.submit(folder / "run.yaml")
    run = Path("runs/run")
    places, attempts = [], []
    lost, forbidden = fake.folder / "loses-codes", fake.folder / "no-requeue"
    lost.touch()

    def is_time_up(number: int) -> bool:
        """In the task of the attempt's number: the fourth learns the last of them to its end."""
        return number < NUM_TASKS and number in learned_tasks(run)

    for attempt in fake.attempts(is_time_up):
        attempts.append(attempt)
        state = RunState.read(run)
        assert state is not None, fake.said()
        places.append((state.task, state.stopped))
        lost.unlink(missing_ok=True)
        if len(attempts) == NUM_TASKS - 1:
            forbidden.touch()
    assert attempts == [(1, 0, 1), (1, 1, 75), (1, 2, 75), (2, 0, 0)], fake.said()
    assert places == [*((task, "stopped by SIGUSR2") for task in range(NUM_TASKS)), (NUM_TASKS, "")]
    assert "--dependency=afterany:1 --partition=long" in (fake.folder / "asked-2").read_text()
    check_results(run, folder / "undisturbed")


@pytest.mark.parametrize("engine", ["ranks", "dask"])
def test_a_job_on_two_nodes_is_requeued_and_ends_with_the_results_of_one_process(
    folder: Path, fake: FakeSlurm, engine: str
) -> None:
    fake.submit(folder / "run.yaml", "--nodes", 2, "--engine", engine)
    run = Path("runs/run")
    attempts = [*fake.attempts(lambda number: number == 0 and 0 in learned_tasks(run))]
    assert attempts == [(1, 0, 75), (1, 1, 0)], fake.said()
    check_results(run, folder / "undisturbed")
    assert not [*Path("runs").glob("run.cluster/*.json")]
    assert "/ecgl_scale/" not in fake.said()  # no trace of ours


def test_without_a_batch_system_kill_stops_the_run_of_a_script_and_the_same_script_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_commands: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{warm_commands}{os.pathsep}{os.environ['PATH']}")
    run, log_path = Path("a run"), Path("log")
    written = run_cli("slurm", folder / "run.yaml", "--system", "shell", "--out", run, "--time", "01:00:00")
    Path("job.sh").write_text(written.stdout)
    with log_path.open("ab") as log:
        started = subprocess.Popen(["bash", "job.sh"], stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not learned_tasks(run) and time.monotonic() < deadline:
            time.sleep(0.01)
        started.terminate()
        assert started.wait(PATIENCE_SECONDS) == 75, log_path.read_text()
        assert "start this script again" in log_path.read_text()
        assert not (run / "results.json").exists()
        again = subprocess.run(["bash", "job.sh"], stdout=log, stderr=log, timeout=PATIENCE_SECONDS, check=False)
    assert again.returncode == 0, log_path.read_text()
    check_results(run, folder / "undisturbed")
