"""A sweep: all runs and one table, whatever fails, whoever stops it, however often it is called."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.config.sweep import load_sweep
from ecgl_scale.errors import DoesNotFitError, LockedError
from ecgl_scale.learn.method.table import built_in_methods
from ecgl_scale.session.sweep import run_work, sweep_plan
from ecgl_scale.session.sweep.run_sweep import error_in
from ecgl_scale.session.sweep.sweep_plan import Schedule, make_schedule
from ecgl_scale.store.graph import GraphStore
from tests.cli_runner import Result, run_cli
from tests.resources import at
from tests.session.streams import config_of, draw_graph, read_json, without_clocks, write_config, write_store
from tests.warm.process import WarmProcess

FAKE = (str(Path(__file__).with_name("fake_run.py")),)
FAILS, IS_KILLED, WAITS = 5, 6, 7
"""Values of learn.lambda, to the fake run."""


@pytest.fixture
def config(store: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "run.yaml", store, tasks={"eval_scope": "both"})


@pytest.fixture
def fake(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are started, but do nothing: what is tested is the sweep."""
    monkeypatch.setattr(run_work, "CHILD", FAKE)
    monkeypatch.setenv("FAKE_STORE_ID", GraphStore.open(store).short_identity)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def sweep(config: Path, out: Path, *arguments: object) -> Result:
    return run_cli("--quiet", "sweep", config, "--out", out, *arguments)


def statuses(out: Path) -> dict[str, str]:
    entries = read_json(out / "sweep.json")["combinations"]
    return {run["path"]: run["status"] for entry in entries for run in entry["runs"]}


def given_to(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "given.jsonl").read_text().splitlines()]


# Real runs


def test_killed_a_sweep_leaves_no_run_behind_and_the_same_command_ends_with_the_results_of_single_runs(
    store: Path, tmp_path: Path
) -> None:
    sweep = {"grid": {"method": ["ecgl"]}, "seeds": "3"}
    config = write_config(tmp_path / "run.yaml", store, sweep=sweep, tasks={"eval_scope": "both"})
    out = tmp_path / "sweep"
    run = out / "method-ecgl" / "seed-3"
    killed = WarmProcess("sweep", config, "--out", out)
    assert wait_until((run / "config.yaml").exists)
    killed.kill()
    killed.communicate()
    assert wait_until(lambda: not is_locked(run), seconds=5)
    assert "results.json" not in {path.name for path in run.iterdir()}
    ran = run_cli("sweep", config, "--out", out)
    assert ran.code == 0, ran.stderr
    assert set(statuses(out).values()) == {"finished"}
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["method", "ecgl", "results:"]
    alone = run_cli("--quiet", "run", out / "method-ecgl" / "config.yaml", "--out", tmp_path / "alone", "--json")
    assert without_clocks(json.loads(alone.stdout)) == without_clocks(read_json(run / "results.json"))
    # Of three tasks and of two together, for all runs; that of all three is the store.
    assert len([*(out / "tasks").glob("*.ecgl")]) == 4
    wanted = read_json(run / "results.json")
    (run / "results.json").write_text("{}")
    again = run_cli("sweep", config, "--out", out)
    assert again.code == 0, again.stderr
    assert without_clocks(read_json(run / "results.json")) == without_clocks(wanted)


def is_locked(run: Path) -> bool:
    try:
        os.close(take_lock(run / ".lock", target=run))
    except LockedError:
        return True
    return False


def wait_until(is_so: Callable[[], bool], *, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


# The sweep around its runs


@pytest.mark.usefixtures("fake")
def test_the_table_has_mean_and_deviation_over_seeds_and_finished_runs_are_kept(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    assert sweep(config, out, "--grid", "learn.lambda=1", "--seeds", "0").code == 0
    ran = run_cli("sweep", config, "--grid", "learn.lambda=1,2", "--seeds", "0,2", "--out", out)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.splitlines()[:3] == [
        "lambda        AA %        AF %  runs  ms/epoch  ms/test",
        "1       11.0 ± 1.0  -1.0 ± 0.0   2/2      27.8    166.7",
        "2       21.0 ± 1.0  -1.0 ± 0.0   2/2      27.8    166.7",
    ]
    rows = [*csv.DictReader((out / "sweep.csv").read_text().splitlines())]
    assert [(row["learn.lambda"], row["seed"], float(row["aa"]), row["status"]) for row in rows] == [
        ("1", "0", 10, "finished"),
        ("1", "2", 12, "finished"),
        ("2", "0", 20, "finished"),
        ("2", "2", 22, "finished"),
    ]
    assert rows[1]["path"] == "lambda-1/seed-2"
    record = read_json(out / "sweep.json")
    assert record["grid"] == {"learn.lambda": [1, 2]}
    assert record["combinations"][1]["aa"] == {"mean": 21, "deviation": 1, "count": 2}
    assert given_to(out / "lambda-1" / "seed-0")[0]["cache"] == str(out / "tasks")
    assert [len(given_to(run)) for run in sorted(out.glob("*/seed-?"))] == [1, 1, 1, 1]
    again = sweep(config, out, "--grid", "learn.lambda=1,2", "--seeds", "0,2", "--json")
    assert json.loads(again.stdout) == read_json(out / "sweep.json") == record | {"jobs": 1}


@pytest.mark.usefixtures("fake")
def test_runs_that_fail_stop_no_others_and_are_told_at_the_end(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    arguments = ("--grid", f"learn.lambda={FAILS},{IS_KILLED},1", "--seeds", "0")
    ran = run_cli("sweep", config, "--out", out, *arguments)
    assert ran.code == 5
    assert statuses(out) == {
        f"lambda-{FAILS}/seed-0": "failed",
        f"lambda-{IS_KILLED}/seed-0": "stopped",
        "lambda-1/seed-0": "finished",
    }
    assert "2 of 3 runs have not finished" in ran.stderr
    assert f"lambda-{FAILS}, seed 0 (failed): the disk is on fire" in ran.stderr
    assert "pour water" in ran.stderr
    assert "killed by SIGKILL" in ran.stderr
    assert ran.stdout.splitlines()[1].split() == [str(FAILS), "-", "-", "0/1", "-", "-"]
    assert "disk is on fire" in (out / f"lambda-{FAILS}" / "seed-0.log").read_text()
    assert sweep(config, out, *arguments).code == 5
    assert [given["goes_on"] for given in given_to(out / f"lambda-{FAILS}" / "seed-0")] == [False, True]
    assert len(given_to(out / "lambda-1" / "seed-0")) == 1


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_it_stops_its_runs_and_goes_on_when_called_again(
    config: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "sweep"
    arguments = ("--grid", f"learn.lambda={WAITS},2", "--jobs", "1")
    waits = out / f"lambda-{WAITS}" / "seed-0" / "waits"

    def stop() -> None:
        if wait_until(waits.exists):
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    ran = sweep(config, out, *arguments)
    thread.join()
    assert ran.code == code, ran.stderr
    assert [*statuses(out).values()] == ["stopped", "waiting"]
    if number is signal.SIGINT:
        return  # the rest is the same
    assert "same command again" in ran.stderr
    again = sweep(config, out, *arguments)
    assert again.code == 0, again.stderr
    assert [given["goes_on"] for given in given_to(waits.parent)] == [False, True]


@pytest.mark.usefixtures("fake")
def test_a_changed_config_or_store_is_refused_and_nothing_is_started(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    assert sweep(config, out, "--grid", "learn.lambda=1").code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    changed = sweep(config, out, "--grid", "learn.lambda=1,2", "--set", "learn.epochs=13", "--set", "threads=1")
    assert changed.code == 2
    assert "these keys differ: learn.epochs\n" in changed.stderr
    other = write_config(tmp_path / "other.yaml", write_store(tmp_path / "x.ecgl", draw_graph(seed=1)))
    assert "store" in sweep(other, out, "--grid", "learn.lambda=1,2").stderr
    monkeypatch.setenv("FAKE_STORE_ID", "another")
    again = tmp_path / "again"
    assert sweep(config, again, "--grid", "learn.lambda=1").code == 0
    stale = sweep(config, again, "--grid", "learn.lambda=1,2")
    assert stale.code == 2
    assert "has changed since" in stale.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("fake")
def test_a_directory_that_is_not_a_sweeps_is_refused_and_so_is_one_that_another_process_holds(
    config: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").touch()
    assert "not the directory of a sweep" in sweep(config, tmp_path / "thesis").stderr
    (tmp_path / "sweep").mkdir()
    lock = take_lock(tmp_path / "sweep" / ".lock", target=tmp_path)
    assert "another process" in sweep(config, tmp_path / "sweep").stderr
    os.close(lock)
    assert sweep(config, tmp_path / "sweep").code == 0


@pytest.mark.usefixtures("fake")
def test_runs_that_cannot_be_are_told_without_being_started(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    ran = sweep(config, out, "--grid", "tasks.split=seeded,store")
    assert ran.code == 2
    assert statuses(out) == {"split-seeded/seed-0": "finished", "split-store/seed-0": "failed"}
    assert not (out / "split-store").exists()
    nothing = sweep(config, tmp_path / "none", "--grid", "learn.lambda=1,2", "--memory", "1MiB")
    assert nothing.code == 4
    assert not (tmp_path / "none").exists()


def test_run_and_plan_send_the_user_to_sweep(store: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", store, sweep={"seeds": "0-1"})
    for command in (("run", config, "--out", tmp_path / "run"), ("plan", config)):
        ran = run_cli(*command)
        assert ran.code == 2
        assert "ecgl sweep" in ran.stderr


def test_the_methods_of_the_papers_tables_are_all_there() -> None:
    for name in ("table-task-il", "table-class-il"):
        found = load_sweep(Path(__file__).parents[2] / "configs" / "paper" / f"{name}.yaml")
        assert {combination.config.method for combination in found.combinations} <= built_in_methods().keys()
        assert len(found.combinations) >= 11
        for combination in found.combinations:  # E-CGL without edges, the baselines as in their papers
            learn = combination.config.learn
            assert learn.train_as == ("mlp" if combination.config.method == "ecgl" else "gcn")
            assert combination.config.method == "ecgl" or (learn.balance, learn.reduction) == ("task", "mean")


def test_the_last_error_of_a_log_is_found() -> None:
    said = "12:00 x\necgl: error: first\n  fix: a\n12:01 y\necgl: error: last\n  where: b\n  fix: c\n"
    assert error_in(said) == "last\n  where: b\n  fix: c"
    assert error_in("Killed\n") is None


# How many at a time


def schedule(store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, **changed: Any) -> Schedule:
    settings: dict[str, Any] = {"cores": 2, "small_flops": 0, "jobs": "auto", "num_runs": 10, **changed}
    monkeypatch.setattr(sweep_plan, "available_cores", lambda: settings["cores"])
    monkeypatch.setattr(sweep_plan, "SMALL_EPOCH_FLOPS", settings["small_flops"])
    config = config_of(store, cache, "threads=null", *overrides)
    return make_schedule({"one": config}, jobs=settings["jobs"], num_runs=settings["num_runs"])


@pytest.mark.parametrize(
    ("changed", "jobs", "threads"),
    [
        ({"cores": 2}, 1, None),  # a run has both
        ({"cores": 2, "small_flops": 1e12}, 2, 1),  # small runs have one each
        ({"cores": 4}, 2, 2),
        ({"cores": 5}, 2, 2),
        ({"cores": 8, "num_runs": 3}, 3, 2),
        ({"cores": 1}, 1, None),
        ({"cores": 2, "jobs": 2}, 2, 1),
    ],
)
def test_auto_gives_a_run_two_cores(
    store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], jobs: int, threads: int | None
) -> None:
    found = schedule(store, cache, monkeypatch, "memory=20GiB", **changed)
    assert (found.jobs, found.share.threads) == (jobs, threads)
    assert found.share.memory_bytes is not None
    assert found.share.memory_bytes * jobs <= (20 << 30) - own_memory_bytes() // 2


def test_as_many_as_fit_the_memory_together(store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = own_memory_bytes()
    rooms = [held + count * (held + (300 << 20)) for count in (1, 3, 20)]
    found = [schedule(store, cache, monkeypatch, f"memory={room}", cores=16) for room in rooms]
    jobs = [one.jobs for one in found]
    assert jobs == sorted(jobs)
    assert 1 == jobs[0] < jobs[1] < jobs[2] == 8
    assert all(one.jobs * (one.share.memory_bytes or 0) <= room for one, room in zip(found, rooms, strict=True))
    with pytest.raises(DoesNotFitError, match="8 runs at a time do not fit"):
        schedule(store, cache, monkeypatch, f"memory={rooms[1]}", cores=16, jobs=8)


def test_without_a_limit_a_single_run_finds_its_own(store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert schedule(store, cache, monkeypatch).share.overrides() == []
    two = schedule(store, cache, monkeypatch, cores=4)
    assert [text.partition("=")[0] for text in two.share.overrides()] == ["memory", "threads"]


def test_a_run_waits_for_another_that_extracts_the_same_graph(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ecgl_scale.tasks import graphs as task_graph
    from ecgl_scale.tasks.stream import TaskStream

    graph = GraphStore.open(store)
    tasks = TaskStream.class_incremental(graph)
    extract: Any = task_graph.extract_graph
    events: list[Any] = []
    calls = []

    def locked_twice(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) <= 2:
            raise LockedError("another process is writing this target", where="it")
        return extract(*arguments, **settings)

    monkeypatch.setattr(task_graph, "extract_graph", locked_twice)
    graphs = task_graph.TaskGraphs(graph, tasks, tmp_path, at(on_event=events.append))
    assert graphs.own(tasks[0]).num_nodes == tasks[0].node_ids.size
    assert sum("waiting for another run" in getattr(event, "text", "") for event in events) == 1
