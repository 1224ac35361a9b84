"""Runs of several ranks, each a process: the files of one process, to the last bit, whoever is stopped or killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.errors import EcglError, UsageError
from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.ranks.board import Board
from ecgl_scale.session.ranks.children import Children
from ecgl_scale.session.ranks.launch import Launch, find_launch
from ecgl_scale.session.ranks.team import RankTeam
from ecgl_scale.session.setup import RunSetup
from tests.cli_runner import run_cli
from tests.session.streams import draw_graph, mapping_of, read_json, without_clocks, write_config, write_store
from tests.warm.process import WarmProcess

pytestmark = pytest.mark.faults

LEAVE_SECONDS = 30
MANY_EPOCHS = "learn.epochs=60"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of 4,000 nodes: more than two lanes of training rows each."""
    return write_store(tmp_path_factory.mktemp("store") / "graph.ecgl", draw_graph(12_000))


@pytest.fixture(scope="module")
def config(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    learn = {"hidden": [24], "epochs": 12, "lr": 0.02, "dropout": 0.2, "scale": "none", "device": "cpu"}
    learn["block_rows"] = 256
    return write_config(folder / "run.yaml", store, learn=learn, cache=str(folder / "tasks"), threads=1)


def _run(config: Path, out: Path, *arguments: object) -> Path:
    ran = run_cli("--quiet", "run", config, "--out", out, *arguments)
    assert ran.code == 0, ran.stderr
    return out


def _check_equal(run: Path, wanted: Path) -> None:
    results = [without_clocks(read_json(path / "results.json")) for path in (run, wanted)]
    assert results[0] == results[1]
    assert pq.read_table(run / "metrics.parquet").equals(pq.read_table(wanted / "metrics.parquet"))
    names = {path.name for path in (wanted / "weights").iterdir()}
    assert {path.name for path in (run / "weights").iterdir()} == names
    for name in names - {"model.json", "checkpoint-0.safetensors", "checkpoint-1.safetensors"}:
        found, expected = (load_tensors(path / "weights" / name)[0] for path in (run, wanted))
        assert {key: array.tobytes() for key, array in found.items()} == {
            key: array.tobytes() for key, array in expected.items()
        }
    assert (run / "bank.arrow").exists() == (wanted / "bank.arrow").exists()
    if (run / "bank.arrow").exists():
        assert (run / "bank.arrow").read_bytes() == (wanted / "bank.arrow").read_bytes()
    assert not (run / "work").exists()


# --- the same bits


@pytest.mark.usefixtures("warm_runs")
@pytest.mark.parametrize(("method", "ranks"), [("ecgl", 2), ("ewc", 3)])
def test_ranks_leave_the_files_of_one_process(config: Path, tmp_path: Path, method: str, ranks: int) -> None:
    one = _run(config, tmp_path / "one", "--set", f"method={method}")
    _check_equal(_run(config, tmp_path / "ranks", "--set", f"method={method}", "--ranks", ranks), one)
    assert f"{ranks} ranks share the training" in (tmp_path / "ranks" / "run.log").read_text()


# --- a rank is stopped, or killed


class Started:
    """``ecgl run --ranks 2`` in a process of its own, in the middle of its epochs."""

    def __init__(self, config: Path, out: Path) -> None:
        self.process = WarmProcess("--quiet", "run", config, "--out", out, "--ranks", 2, "--set", MANY_EPOCHS)
        events = out / "events.jsonl"
        self._wait_until(lambda: events.exists() and events.read_text().count("EpochFinished") > 65)
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (self.child,) = (int(number) for number in found)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.process.poll() is None

    def end(self) -> tuple[int | None, str]:
        _, said = self.process.communicate(timeout=LEAVE_SECONDS)
        self._wait_for_child()
        return self.process.returncode, said

    def _wait_for_child(self) -> None:
        deadline = time.monotonic() + 5
        while Path(f"/proc/{self.child}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{self.child}").exists()


@pytest.fixture(scope="module")
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(config, tmp_path_factory.mktemp("clean") / "run", "--set", MANY_EPOCHS)


@pytest.mark.parametrize(
    ("victim", "number", "code", "reason"),
    [
        ("child", signal.SIGTERM, 75, "rank 1"),
        ("child", signal.SIGKILL, 75, "rank 1 was killed by SIGKILL"),
        ("first", signal.SIGINT, 130, ""),
    ],
)
def test_all_ranks_leave_and_the_run_goes_on_with_one(
    config: Path, undisturbed: Path, tmp_path: Path, victim: str, number: signal.Signals, code: int, reason: str
) -> None:
    started = Started(config, tmp_path / "run")
    os.kill(started.child if victim == "child" else started.process.pid, number)
    ended, said = started.end()
    assert ended == code, said
    assert reason in said
    assert read_json(tmp_path / "run" / "state.json")["checkpoint"] is not None
    _check_equal(_run(config, tmp_path / "run", "--resume", "--set", MANY_EPOCHS, "--ranks", 1), undisturbed)


def test_no_rank_outlives_the_first_and_two_go_on(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    started = Started(config, tmp_path / "run")
    started.process.kill()
    assert started.end()[0] == -signal.SIGKILL
    _check_equal(_run(config, tmp_path / "run", "--resume", "--set", MANY_EPOCHS, "--ranks", 2), undisturbed)


def test_the_first_rank_hears_of_a_child_that_ends_wherever_it_is() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        children = Children.start(["sh", "-c", "exit 5"], 2, 1)
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        lost = children.lost()
        children.end()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert lost == "rank 1 has ended with exit code 5"


# --- what is refused, before anything is written


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("learn.batching=minibatch", "learn.batching is minibatch"),
        ("learn.train_as=gcn", "learn.train_as is gcn"),
        ("engine.ranks=17", "at most 16"),
    ],
)
def test_what_cannot_be_shared_is_refused(config: Path, tmp_path: Path, override: str, said: str) -> None:
    ran = run_cli("run", config, "--out", tmp_path / "run", "--set", "engine.ranks=2", "--set", override)
    assert ran.code == 2
    assert said in ran.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("warm_runs")
def test_a_run_that_does_not_fit_ends_all_ranks_and_writes_nothing(config: Path, tmp_path: Path) -> None:
    ran = run_cli("run", config, "--out", tmp_path / "run", "--ranks", 2, "--memory", "150MiB")
    assert ran.code == 4
    assert not (tmp_path / "run").exists()


def test_a_sweep_has_no_runs_of_several_ranks(config: Path, tmp_path: Path) -> None:
    ran = run_cli("sweep", config, "--grid", "engine.ranks=1,2", "--out", tmp_path / "sweep")
    assert ran.code == 2
    assert "engine.ranks" in ran.stderr
    assert not (tmp_path / "sweep").exists()


def test_the_plan_has_the_memory_of_the_exchange(store: Path) -> None:
    configs = [config_from_mapping(mapping_of(store), overrides=[f"engine.ranks={ranks}"]) for ranks in (1, 4)]
    alone, shared = (plan_run(RunSetup.open(config)) for config in configs)
    assert shared.planned_bytes["train"] > alone.planned_bytes["train"]
    assert "for lanes of 4 ranks" in str([stage.formula for stage in shared.stages])
    assert "lanes" not in str([stage.formula for stage in alone.stages])


# --- who is who


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "SLURM_JOB_ID": "123456"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        (TORCHRUN, Launch(1, 2, "node1", 29500)),
        (
            {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"},
            Launch(1, 2, "node1", 29500, has_store=True, attempt="2"),
        ),
        (SRUN, Launch(3, 4, "10.0.0.1", 20_000 + 123456 % 20_000)),
        ({**SRUN, "MASTER_ADDR": "node7", "MASTER_PORT": "4000"}, Launch(3, 4, "node7", 4000)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            Launch(0, 2, "a", 1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, Launch(1, 2, "a", 1)),
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, None),
    ],
)
def test_a_launcher_says_which_rank_this_is(environment: dict[str, str], wanted: Launch | None) -> None:
    assert find_launch(2 if wanted is None else wanted.size, environment) == wanted


def test_another_number_of_processes_than_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="srun has started 4 processes, the run has 2 ranks"):
        find_launch(2, SRUN)
    with pytest.raises(UsageError, match="does not say where the first rank is"):
        find_launch(2, {"PMI_RANK": "1", "PMI_SIZE": "2"})


def test_one_process_a_rank_may_be_started_by_others(config: Path, tmp_path: Path) -> None:
    """As torchrun and srun do it: the same command everywhere, and the environment says who is who."""
    port = _free_port()
    command = ("--quiet", "run", config, "--set", "method=gem", "--out", tmp_path / "run", "--ranks", 2)
    place = {"SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [WarmProcess(*command, environment={**place, "SLURM_PROCID": str(rank)}) for rank in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    _check_equal(tmp_path / "run", _run(config, tmp_path / "one", "--set", "method=gem"))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def boards() -> tuple[Board, Board]:
    first = Board.listen()
    return first, Board.join(Launch(1, 2, "127.0.0.1", first.port))


def test_a_rank_that_would_compute_something_else_is_refused(store: Path, boards: tuple[Board, Board]) -> None:
    setup = RunSetup.open(config_from_mapping(mapping_of(store)))
    notes: list[Any] = []
    team = RankTeam(boards[0], 0, 2)
    boards[1].put("hello/0", {"host": "here"})
    boards[1].put("hello/1", {"host": "there"})
    boards[1].put("ready/1", {"config": "another", "processor": "x"})
    with pytest.raises(UsageError, match=r"rank 1 on there would compute something else: config another instead of"):
        team.wait_until_ready(setup, notes.append)


def test_an_address_that_other_machines_cannot_reach_is_refused(boards: tuple[Board, Board]) -> None:
    """As where a machine's own name stands for 127.0.1.1."""
    boards[1].put("hello/1", {"host": "elsewhere", "cores": [0], "device": "cpu"})
    with pytest.raises(UsageError, match=r"at 127.0.0.1, where ranks on other machines do not"):
        RankTeam(boards[0], 0, 2).meet("cpu")


def test_a_rank_whose_own_plan_does_not_fit_is_told_with_its_machine(store: Path, boards: tuple[Board, Board]) -> None:
    for rank, host in enumerate(("here", "there")):
        boards[1].put(f"hello/{rank}", {"host": host})
    boards[1].put("ready/1", {"refused": "train needs 3 GiB, the budget is 2 GiB", "exit_code": 4})
    with pytest.raises(EcglError, match="rank 1 on there: train needs 3 GiB") as caught:
        RankTeam(boards[0], 0, 2).wait_until_ready(RunSetup.open(config_from_mapping(mapping_of(store))), print)
    assert caught.value.exit_code == 4


def test_words_of_ranks_that_left_are_told_with_their_exit_code(store: Path, boards: tuple[Board, Board]) -> None:
    boards[1].put("hello/0", {"host": "here"})
    assert RankTeam(boards[1], 1, 2).leave("the disk is full", 5)
    with pytest.raises(EcglError, match="rank 1: the disk is full") as caught:
        RankTeam(boards[0], 0, 2).wait_until_ready(RunSetup.open(config_from_mapping(mapping_of(store))), print)
    assert caught.value.exit_code == 5
