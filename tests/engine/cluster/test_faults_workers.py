"""Faults in real workers: kills in every stage, failing disks, flipped bits, units that never succeed."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.events import Note
from ecgl_scale.engine import work as work_module
from ecgl_scale.engine.block import split_blocks
from ecgl_scale.engine.cluster.entrance import with_workers
from ecgl_scale.engine.cluster.settings import ClusterSettings
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.errors import ClusterLostError, CorruptStoreError, EcglError, StorageError
from ecgl_scale.rank.pagerank import PageRankSettings
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.store_ranking import rank_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.sources.kron import kron_source
from ecgl_scale.store.verify import verify_store
from tests.engine.cluster.conftest import ScriptedWorkers
from tests.engine.cluster.fake_cluster import HOME, NAME, Rows, rows_work
from tests.faults.running import file_checksums, leftovers, run_cli
from tests.resources import at
from tests.session.streams import draw_graph, write_config, write_store

pytestmark = pytest.mark.faults

BLOCKS = split_blocks(160, 10)
GIVEN = {"factor": 3}
REQUEST = RankRequest(kind="both", pagerank=PageRankSettings(tol=0.0, max_iter=6))


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "WORKS", {**work_module.WORKS, NAME: HOME})


def run_rows(workers: ScriptedWorkers, folder: Path) -> None:
    work = rows_work(folder / "rows", BLOCKS)
    journal: RecordJournal[Rows] = RecordJournal(folder / "journal", {"job": 1}, Rows)
    resources = workers.resources.with_work(folder / "work")
    assert [block for block, _ in run_blocks(work, BLOCKS, resources, journal, GIVEN)] == BLOCKS
    np.testing.assert_array_equal(work.place.read(0, 160), np.arange(160) * 3)


def test_workers_killed_in_every_stage_of_a_ranking_change_no_bit(
    workers: ScriptedWorkers, store: Path, tmp_path: Path
) -> None:
    graph = GraphStore.open(store)
    stages = ("rank.degrees", "rank.attribute.accumulate", "rank.attribute.evaluate", "rank.diversity")
    rank_store(graph, tmp_path / "alone.parquet", REQUEST, at())
    for stage in stages:
        workers.script.plan(stage, 0, ["kill"])
    workers.script.plan("rank.sweep", 1, [None, None, "kill", None, "kill"])
    rank_store(graph, tmp_path / "workers.parquet", REQUEST, workers.resources)
    assert (tmp_path / "workers.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert leftovers(tmp_path) == []
    for stage in stages:
        assert workers.script.times_begun(stage, 0) >= 2, stage
    begun = workers.script.begun("rank.sweep")
    num_deaths, num_rounds, num_stripes = 2, 1 + 6, len(begun)
    assert sum(begun.values()) <= num_rounds * num_stripes + num_deaths * num_stripes


def test_a_worker_killed_at_random_times_changes_no_bit(workers: ScriptedWorkers, store: Path, tmp_path: Path) -> None:
    graph, rng = GraphStore.open(store), np.random.default_rng(5)
    request = dataclasses.replace(REQUEST, pagerank=PageRankSettings(tol=0.0, max_iter=40))
    rank_store(graph, tmp_path / "alone.parquet", request, at())
    stop, killed = threading.Event(), list[int]()
    cluster = workers.resources.executor.cluster  # type: ignore[attr-defined]

    def kill_now_and_then() -> None:
        while not stop.wait(float(rng.uniform(0.2, 1.2))) and len(killed) < 3:
            with suppress(ClusterLostError, OSError):  # one is lost already, and its successor not yet there
                pids = [facts.pid for facts in cluster.describe({})]
                if pids:  # none where one is lost and its successor not yet there
                    os.kill(int(rng.choice(pids)), signal.SIGKILL)
                    killed.append(1)

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        rank_store(graph, tmp_path / "workers.parquet", request, workers.resources)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert (tmp_path / "workers.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert leftovers(tmp_path) == []


def test_workers_killed_in_ingest_and_verify_leave_the_same_store(workers: ScriptedWorkers, tmp_path: Path) -> None:
    build_store(kron_source(scale=17, edge_factor=2, num_features=4), tmp_path / "alone.ecgl", at())
    for stage in ("ingest.partition", "ingest.block", "store.verify_bytes", "store.verify_rows"):
        workers.script.plan(stage, 0, ["kill"])
    build_store(kron_source(scale=17, edge_factor=2, num_features=4), tmp_path / "workers.ecgl", workers.resources)
    verify_store(tmp_path / "workers.ecgl", workers.resources)
    assert file_checksums(tmp_path / "workers.ecgl") == file_checksums(tmp_path / "alone.ecgl")
    assert leftovers(tmp_path) == []
    assert workers.script.works() >= {"ingest.partition", "ingest.block", "store.verify_bytes", "store.verify_rows"}
    assert workers.script.times_begun("ingest.block", 0) == 2


@pytest.mark.parametrize(("action", "message"), [("raise:broken", "broken"), ("kill", "a worker was lost, try 3 of 3")])
def test_a_block_that_never_succeeds_is_named_after_three_tries_and_healed_it_alone_is_done(
    workers: ScriptedWorkers, tmp_path: Path, action: str, message: str
) -> None:
    workers.script.plan(NAME, 7, action)
    with pytest.raises(EcglError, match=message) as caught:
        run_rows(workers, tmp_path)
    assert caught.value.exit_code == 70
    assert "blocks 7, 15" in str(caught.value.where)
    assert workers.script.times_begun(NAME, 7) == 3
    finished = set(workers.script.begun(NAME)) - {7, 15}
    workers.script.begin()
    run_rows(workers, tmp_path)
    assert {7, 15} <= set(workers.script.begun(NAME))
    assert not finished & set(workers.script.begun(NAME))
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(("code", "tries"), [("EIO", 3), ("ESTALE", 3), ("ENOSPC", 1)])
def test_a_disk_that_fails_in_a_worker_is_a_storage_error_with_its_name(
    workers: ScriptedWorkers, tmp_path: Path, code: str, tries: int
) -> None:
    workers.script.plan(NAME, 3, f"errno:{code}")
    with pytest.raises(StorageError, match="the disk refused") as caught:
        run_rows(workers, tmp_path)
    assert caught.value.exit_code == 5
    assert "on worker" in str(caught.value.where)
    assert workers.script.times_begun(NAME, 3) == tries


def test_a_disk_that_fails_once_is_tried_on_the_other_worker(workers: ScriptedWorkers, tmp_path: Path) -> None:
    workers.script.plan(NAME, 3, ["errno:EIO"])
    run_rows(workers, tmp_path)
    assert workers.script.times_begun(NAME, 3) == 2
    assert len([event for event in workers.events if isinstance(event, Note) and event.is_warning]) == 1


def _flip_when_there(folder: Path, pattern: str, found: list[Path], stop: Callable[[], bool]) -> None:
    while not stop() and not found:
        with suppress(FileNotFoundError):  # a folder of a stage before has gone while it was looked through
            for path in folder.rglob(pattern):
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 8
                path.write_bytes(content)
                found.append(path)
                break
        time.sleep(0.002)


def test_a_bit_that_flips_between_units_is_found_and_named(
    workers: ScriptedWorkers, store: Path, tmp_path: Path
) -> None:
    stop, found = threading.Event(), list[Path]()
    flipper = threading.Thread(target=_flip_when_there, args=(tmp_path, "degrees/all/0.rows", found, stop.is_set))
    workers.script.plan("rank.sweep", 0, "sleep:0.5")
    flipper.start()
    try:
        with pytest.raises(CorruptStoreError, match="not as they were written") as caught:
            rank_store(GraphStore.open(store), tmp_path / "scores.parquet", REQUEST, workers.resources)
    finally:
        stop.set()
        flipper.join()
    assert str(found[0]) in str(caught.value.where)
    assert not (tmp_path / "scores.parquet").exists()


def test_a_worker_that_dask_has_given_up_is_started_anew(tmp_path: Path) -> None:
    """Dask's nanny leaves when its worker is killed while it starts."""
    with with_workers(ClusterSettings(workers=1), at("2GiB", 1), shared=[tmp_path / "out"]) as resources:
        cluster = resources.executor.cluster  # type: ignore[attr-defined]
        (before,) = cluster.names()
        local = cluster.client.cluster
        local.sync(local.workers[0].close)
        deadline = time.monotonic() + 30
        while not (names := cluster.names()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(names) == 1
        assert before not in names


def test_workers_killed_in_a_run_and_an_inference_change_no_result(workers: ScriptedWorkers, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store.ecgl", draw_graph())
    learn = {"hidden": [24], "epochs": 3, "lr": 0.02}
    config = write_config(tmp_path / "run.yaml", store, learn=learn, bank={"budget": 40, "select": "ecgl"})
    address = workers.resources.executor.cluster.client.scheduler.address  # type: ignore[attr-defined]
    stages = ("ingest.block", "rank.sweep", "rank.diversity", "evaluate.task", "infer.layers")
    for stage in stages:
        workers.script.plan(stage, 0, ["kill"])
    for name, where in (("alone", ()), ("workers", ("--scheduler", address))):
        ran = run_cli("--quiet", "run", config, "--out", tmp_path / name, *where)
        assert ran.code == 0, ran.stderr
        out = tmp_path / f"{name}.parquet"
        ran = run_cli("--quiet", "infer", tmp_path / "alone", store, "--out", out, *where)
        assert ran.code == 0, ran.stderr
    for name in ("bank.arrow", "metrics.parquet"):
        assert (tmp_path / "workers" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    assert (tmp_path / "workers.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert {stage: workers.script.times_begun(stage, 0) >= 2 for stage in stages} == dict.fromkeys(stages, True)
    assert not list(tmp_path.rglob("*.partial"))


def test_workers_killed_while_sparse_features_are_summed_passed_along_and_multiplied_change_no_result(
    workers: ScriptedWorkers, tmp_path: Path
) -> None:
    drawn = draw_graph(num_features=64)
    drawn.x[drawn.x < np.quantile(drawn.x, 0.95)] = 0.0
    store = write_store(tmp_path / "store.ecgl", drawn, features_as="sparse")
    address = workers.resources.executor.cluster.client.scheduler.address  # type: ignore[attr-defined]
    learn = {"hidden": [8], "epochs": 3, "lr": 0.02}
    passed = write_config(tmp_path / "passed.yaml", store, learn=learn, method="cat")
    plain = write_config(tmp_path / "plain.yaml", store, learn=learn)
    stages = ("rank.attribute.strip_sums", "rank.attribute.strip_values", "graph.propagate", "infer.prepare")
    for stage in stages:
        workers.script.plan(stage, 0, ["kill"])
    for name, where in (("alone", ()), ("workers", ("--scheduler", address))):
        for command in (
            ("rank", store, "--out", tmp_path / f"ranks-{name}.parquet"),
            ("run", passed, "--out", tmp_path / f"passed-{name}"),
            ("run", plain, "--out", tmp_path / f"plain-{name}"),
            ("infer", tmp_path / "plain-alone", store, "--out", tmp_path / f"labels-{name}.parquet"),
        ):
            ran = run_cli("--quiet", *command, *where)
            assert ran.code == 0, ran.stderr
    for pattern in ("ranks-{}.parquet", "labels-{}.parquet", "passed-{}/metrics.parquet", "plain-{}/bank.arrow"):
        alone, spread = ((tmp_path / pattern.format(name)).read_bytes() for name in ("alone", "workers"))
        assert alone == spread, pattern
    assert {stage: workers.script.times_begun(stage, 0) >= 2 for stage in stages} == dict.fromkeys(stages, True)
