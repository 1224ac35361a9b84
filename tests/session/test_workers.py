"""Commands whose work is done by other processes, through the doors that users take: the same bytes as by one alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.config.schema import load_config
from ecgl_scale.engine.cluster.settings import ClusterSettings
from ecgl_scale.units import GIB, MIB
from tests.cli_runner import Result, run_cli
from tests.session.streams import Drawn, events_of, read_json, without_clocks, write_config


@pytest.fixture(scope="module")
def workers() -> Iterator[list[object]]:
    """Options that send the work to two processes; one cluster for all tests, as starting it takes seconds."""
    from ecgl_scale.engine.cluster.dask_cluster import connect

    with connect(ClusterSettings(workers=2, worker_memory="2GiB", worker_threads=1)) as cluster:
        yield ["--scheduler", cluster.client.scheduler.address]


@pytest.fixture(scope="module")
def config(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(
        tmp_path_factory.mktemp("config") / "run.yaml",
        store,
        learn={"hidden": [24], "epochs": 3, "lr": 0.02},
        bank={"budget": 40, "select": "ecgl"},
    )


@pytest.fixture(scope="module")
def runs(config: Path, workers: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run by this process alone, and one by workers."""
    folder = tmp_path_factory.mktemp("runs")
    done("run", config, "--out", folder / "alone")
    done("run", config, "--out", folder / "by-workers", *workers)
    return folder / "alone", folder / "by-workers"


def done(*arguments: object) -> Result:
    ran = run_cli(*arguments)
    assert ran.code == 0, ran.stderr
    return ran


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_ingested_store_has_the_same_files(drawn: Drawn, tmp_path: Path, workers: list[object]) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=drawn.edge_index, x=drawn.x, y=drawn.y)
    done("ingest", "npz", tmp_path / "graph.npz", tmp_path / "alone.ecgl")
    done("ingest", "npz", tmp_path / "graph.npz", tmp_path / "workers.ecgl", *workers)
    assert bytes_in(tmp_path / "workers.ecgl") == bytes_in(tmp_path / "alone.ecgl")
    assert "good" in done("verify", tmp_path / "workers.ecgl", *workers).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.ecgl", "graph.npz", "workers.ecgl"]


def test_damage_is_found_by_workers(tmp_path: Path, workers: list[object]) -> None:
    damaged = tmp_path / "damaged.ecgl"
    done("generate", "kron", damaged, "--scale", 12)
    path = max((path for path in damaged.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 30] ^= 1  # where --fast would not look
    path.write_bytes(content)
    ran = run_cli("verify", damaged, *workers)
    assert ran.code == 3
    assert path.name in ran.stderr
    assert "on worker" in ran.stderr


def test_ranks_have_the_same_bytes(store: Path, tmp_path: Path, workers: list[object]) -> None:
    for name, options in (("alone", []), ("workers", workers)):
        done("rank", store, "--kind", "both", "--out", tmp_path / f"{name}.parquet", *options)
    assert (tmp_path / "workers.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()


def test_a_whole_run_has_the_same_results_weights_and_bank(runs: tuple[Path, Path]) -> None:
    alone, by_workers = runs
    assert same_results(by_workers) == same_results(alone)
    for name in ("bank.arrow", "metrics.parquet", "split.parquet"):
        assert (by_workers / name).read_bytes() == (alone / name).read_bytes(), name
    weights = [load_file(run / "weights/model.safetensors") for run in (by_workers, alone)]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][name].tobytes() == weights[1][name].tobytes() for name in weights[0])
    assert sum(worker["num_blocks"] for worker in read_json(by_workers / "results.json")["workers"].values()) > 10
    works = {event["work"] for event in events_of(by_workers, "WorkerReported")}
    assert works >= {"ingest.partition", "ingest.block", "rank.sweep", "rank.diversity", "evaluate.task"}


def same_results(run: Path) -> dict[str, Any]:
    found = without_clocks(read_json(run / "results.json"))
    return {name: value for name, value in found.items() if name != "workers"}


def test_predictions_have_the_same_bytes(
    runs: tuple[Path, Path], store: Path, tmp_path: Path, workers: list[object]
) -> None:
    for name, options in (("alone", []), ("workers", workers)):
        done("infer", runs[0], store, "--out", tmp_path / f"{name}.parquet", *options)
    assert (tmp_path / "workers.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()


def test_runs_of_a_sweep_are_spread(
    runs: tuple[Path, Path], config: Path, tmp_path: Path, workers: list[object]
) -> None:
    done("sweep", config, "--seeds", "0-1", "--out", tmp_path / "sweep", *workers)
    found = sorted((tmp_path / "sweep").glob("*/seed-*/results.json"))
    assert [path.parent.name for path in found] == ["seed-0", "seed-1"]
    assert same_results(found[0].parent) == same_results(runs[0])
    assert "scheduler: null" in (found[0].parent / "config.yaml").read_text()


def test_any_number_of_workers_may_go_on_with_a_run(runs: tuple[Path, Path], config: Path) -> None:
    before = read_json(runs[1] / "results.json")
    done("run", config, "--out", runs[1], "--resume")
    assert read_json(runs[1] / "results.json") == before
    assert read_json(runs[1] / "state.json")["digest"] == read_json(runs[0] / "state.json")["digest"]


def test_what_the_command_line_says_of_workers_wins_over_the_config(store: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", store, engine={"scheduler": str(tmp_path / "none.json")})
    refused = run_cli("run", config, "--out", tmp_path / "run")
    assert refused.code == 3
    assert "this is not the file of a scheduler" in refused.stderr
    of_config = load_config(config).engine
    assert load_config(config, ClusterOptions().overrides()).engine == of_config
    started = load_config(config, ClusterOptions(workers=3, worker_memory="1GiB").overrides()).engine
    assert (started.workers, started.scheduler, started.worker_memory) == (3, None, "1GiB")
    given = ["engine.workers=2", "engine.worker_threads=1", *ClusterOptions(scheduler="tcp://a:1").overrides()]
    joined = load_config(config, given).engine
    assert (joined.workers, joined.worker_threads, joined.scheduler) == (None, None, "tcp://a:1")


def test_workers_and_a_scheduler_exclude_each_other(store: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", store, engine={"workers": 2, "scheduler": "tcp://127.0.0.1:1"})
    ran = run_cli("run", config, "--out", tmp_path / "run")
    assert ran.code == 2
    assert "workers and scheduler exclude each other" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_worker_with_too_little_memory_is_refused_before_the_run_starts(config: Path, tmp_path: Path) -> None:
    ran = run_cli("run", config, "--out", tmp_path / "run", "--workers", 1, "--worker-memory", "200MiB")
    assert ran.code == 4
    assert "of each worker, worker 0 has 200 MiB" in ran.stderr
    assert "--worker-memory" in ran.stderr
    assert "1 worker on 1 machine, each with 200 MiB or more" in ran.stderr
    assert ("Dask's dashboard: http://127.0.0.1:" in ran.stderr) == (find_spec("bokeh") is not None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["rank", "infer", "ingest", "verify"])
def test_every_command_asks_its_workers_for_their_limits(
    command: str, runs: tuple[Path, Path], drawn: Drawn, store: Path, tmp_path: Path, workers: list[object]
) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=drawn.edge_index, x=drawn.x, y=drawn.y)
    arguments: dict[str, list[object]] = {
        "rank": [store, "--out", tmp_path / "out"],
        "infer": [runs[0], store, "--out", tmp_path / "out"],
        "ingest": ["npz", tmp_path / "graph.npz", tmp_path / "out"],
        "verify": [store],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecgl_scale.engine.cluster.worker_memory.PROCESS_BYTES", 3 * GIB)
        ran = run_cli(command, *arguments[command], *workers)
    assert ran.code == 4
    assert "of each worker, worker " in ran.stderr
    assert "has 2 GiB" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["graph.npz"]


def test_a_plan_says_what_one_worker_needs_and_refuses_what_it_has_not(
    config: Path, tmp_path: Path, workers: list[object]
) -> None:
    shown = done("plan", config, "--workers", 2, "--worker-memory", "3GiB")
    assert "one worker\n" in shown.stdout
    assert "fits the budget of 3 GiB from --worker-memory" in shown.stdout
    refused = run_cli("plan", config, "--workers", 2, "--worker-memory", "300MiB", "--json")
    assert refused.code == 4
    worker = json.loads(refused.stdout)["worker"]
    assert (worker["fits"], worker["budget_bytes"]) == (False, 300 * MIB)
    assert {stage["stage"] for stage in worker["stages"]} == {"extract", "remember", "evaluate"}
    assert "give at least --worker-memory" in refused.stderr
    of_cluster = json.loads(done("plan", config, "--json", *workers).stdout)["worker"]
    assert (of_cluster["fits"], of_cluster["budget_bytes"]) == (True, 2 * GIB)
    assert of_cluster["budget_from"].startswith("worker ")


def test_the_doctor_tries_a_directory_on_every_worker(
    tmp_path: Path, workers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecgl_scale.cli.doctor.DISK_TEST_BYTES", 4 * MIB)
    monkeypatch.setattr("ecgl_scale.cli.doctor.check_dgl", lambda: "works")
    lines = done("doctor", "--root", tmp_path, *workers).stdout.splitlines()
    assert sum(line.startswith(("this process ", "worker 0 ", "worker 1 ")) for line in lines) == 3
    tried = json.loads(done("doctor", "--root", tmp_path, "--json", *workers).stdout)["root"]["tried"]
    assert [(one["worker"], one["problem"]) for one in tried][1:] == [("worker 0", ""), ("worker 1", "")]
    assert not list(tmp_path.iterdir())
