"""The executor of a cluster against one in this process: order, tries, stops and losses."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.base.events import Event, Note, WorkerReported
from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine import work as work_module
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.cluster import executor as executor_module
from ecgl_scale.engine.cluster.executor import ClusterExecutor
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import ClusterLostError, EcglError, StopRequestedError, StorageError, UsageError
from ecgl_scale.units import GIB
from tests.engine.cluster.fake_cluster import HOME, NAME, FakeCluster, Rows, RowsWork, rows_work

BLOCKS = split_blocks(160, 10)
GIVEN = {"factor": 3}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "WORKS", {**work_module.WORKS, NAME: HOME})
    monkeypatch.setattr(RowsWork, "errors", {})
    for name, seconds in {"WORKERS_SECONDS": 0.05, "LOOK_SECONDS": 0.01, "WAIT_SECONDS": 0.01}.items():
        monkeypatch.setattr(executor_module, name, seconds)


def at(cluster: FakeCluster, tmp_path: Path, events: list[Event] | None = None) -> Resources:
    return Resources(
        MemoryBudget(GIB, "test"),
        1,
        on_event=(lambda _: None) if events is None else events.append,
        executor=ClusterExecutor(cluster),
        work=tmp_path,
    )


def run(cluster: FakeCluster, tmp_path: Path, events: list[Event] | None = None) -> list[tuple[Block, Rows]]:
    work = rows_work(tmp_path / "rows", BLOCKS)
    return list(run_blocks(work, BLOCKS, at(cluster, tmp_path, events), given=GIVEN))


def fail(index: int, *errors: Exception) -> None:
    RowsWork.errors[index] = list(errors)


def test_records_come_in_the_order_of_the_blocks_and_rows_are_in_place(tmp_path: Path) -> None:
    cluster = FakeCluster()
    found = run(cluster, tmp_path)
    assert [block for block, _ in found] == BLOCKS
    assert [record.total for _, record in found] == [3 * sum(range(b.start, b.stop)) for b in BLOCKS]
    place = rows_work(tmp_path / "rows", BLOCKS).place
    np.testing.assert_array_equal(place.read(0, 160), np.arange(160) * 3)
    assert len(cluster.closed) == 1


def test_nobody_has_two_units_at_once(tmp_path: Path) -> None:
    cluster = FakeCluster(num_workers=3)
    run(cluster, tmp_path)
    first_three = {address for address, _ in cluster.sent[:3]}
    assert first_three == set(cluster.addresses)


def test_a_journal_hears_of_records_when_they_arrive_not_when_their_turn_comes(tmp_path: Path) -> None:
    heard: list[int] = []
    given_on: list[int] = []
    cluster = FakeCluster()
    resources = at(cluster, tmp_path)
    with resources.executor.open(rows_work(tmp_path / "rows", BLOCKS), resources) as workers:
        for block, _ in workers.run(BLOCKS, GIVEN, lambda block, _: heard.append(block.index)):
            given_on.append(block.index)
            assert set(given_on) <= set(heard)
    assert given_on == sorted(heard)
    assert heard[0] != 0, "the unit that was sent last arrives first"


def test_a_passing_failure_is_tried_again_by_another_worker(tmp_path: Path) -> None:
    fail(5, OSError(errno.EIO, "disk"))
    cluster, events = FakeCluster(), list[Event]()
    assert [block for block, _ in run(cluster, tmp_path, events)] == BLOCKS
    who = [address for address, indices in cluster.sent if 5 in indices]
    assert len(who) == len(set(who)) == 2
    warnings = [event.text for event in events if isinstance(event, Note) and event.is_warning]
    assert len(warnings) == 1
    assert warnings[0].startswith("try 1 of 3 failed: the disk refused")
    reported = [event for event in events if isinstance(event, WorkerReported)]
    assert sum(event.num_blocks for event in reported) == len(BLOCKS)
    assert [event.tries for event in reported if event.tries > 1] == [2]


def test_three_tries_end_with_one_error_that_names_block_and_worker(tmp_path: Path) -> None:
    fail(5, *(ZeroDivisionError("no") for _ in range(5)))
    cluster = FakeCluster()
    with pytest.raises(EcglError, match="ZeroDivisionError: no") as caught:
        run(cluster, tmp_path)
    where = str(caught.value.where)
    assert f"{NAME}, block" in where
    assert " 5" in where
    assert "on worker worker w" in where
    assert "in run" in caught.value.__notes__[0], "the worker's trace comes along"
    assert len([1 for _, indices in cluster.sent if 5 in indices]) == 3


def test_what_is_lost_with_a_worker_is_done_by_another(tmp_path: Path) -> None:
    cluster, events = FakeCluster(kills={5: 2}), list[Event]()
    assert [block for block, _ in run(cluster, tmp_path, events)] == BLOCKS
    who = [address for address, indices in cluster.sent if 5 in indices]
    assert len(who) == len(set(who)) == 3
    assert all(sum(index in indices for _, indices in cluster.sent) == 1 for index in range(16) if index not in (5, 13))
    warnings = [event.text for event in events if isinstance(event, Note) and event.is_warning]
    assert [text.splitlines()[0] for text in warnings] == [
        f"try {number} of 3 failed: a worker was lost, try {number} of 3" for number in (1, 2)
    ]


def test_a_unit_that_kills_three_workers_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(EcglError, match="a worker was lost, try 3 of 3") as caught:
        run(FakeCluster(kills={5: 9}), tmp_path)
    assert caught.value.exit_code == 70
    assert str(caught.value.where).startswith(f"{NAME}, blocks 5, 13, on worker w")


@pytest.mark.parametrize("error", [UsageError("no"), OSError(errno.ENOSPC, "full"), MemoryError()])
def test_a_refusal_is_not_tried_again(error: Exception, tmp_path: Path) -> None:
    fail(5, error)
    cluster = FakeCluster()
    with pytest.raises(EcglError):
        run(cluster, tmp_path)
    assert len([1 for _, indices in cluster.sent if 5 in indices]) == 1


def test_the_same_kind_of_error_is_raised_as_on_one_machine(tmp_path: Path) -> None:
    fail(5, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError, match="No space left"):
        run(FakeCluster(), tmp_path)


def test_blocks_that_are_finished_when_one_fails_are_in_the_journal_and_not_run_again(tmp_path: Path) -> None:
    fail(6, UsageError("broken"))
    journal: RecordJournal[Rows] = RecordJournal(tmp_path / "journal", {"job": 1}, Rows)
    cluster = FakeCluster()
    work = rows_work(tmp_path / "rows", BLOCKS)
    with pytest.raises(UsageError):
        list(run_blocks(work, BLOCKS, at(cluster, tmp_path), journal, GIVEN))
    begun = {index for _, indices in cluster.sent for index in indices}
    again = FakeCluster()
    healed: RecordJournal[Rows] = RecordJournal(tmp_path / "journal", {"job": 1}, Rows)
    found = list(run_blocks(work, BLOCKS, at(again, tmp_path), healed, GIVEN))
    assert [block for block, _ in found] == BLOCKS
    rerun = {index for _, indices in again.sent for index in indices}
    failed_unit = next(set(indices) for _, indices in cluster.sent if 6 in indices)
    assert rerun & begun == failed_unit


def test_without_workers_for_long_the_cluster_is_lost(tmp_path: Path) -> None:
    cluster = FakeCluster()
    resources = at(cluster, tmp_path)
    with resources.executor.open(rows_work(tmp_path / "rows", BLOCKS), resources) as workers:
        cluster.addresses = []
        with pytest.raises(ClusterLostError, match="all workers are gone"):
            list(workers.run(BLOCKS, GIVEN))


def test_a_worker_that_comes_back_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, looks = FakeCluster(), 0
    addresses = cluster.addresses

    def look() -> dict[str, str]:
        nonlocal looks
        looks += 1
        return {} if looks < 3 else {address: address for address in addresses}

    monkeypatch.setattr(cluster, "names", look)
    assert [block for block, _ in run(cluster, tmp_path)] == BLOCKS
    assert looks >= 3


def test_a_lost_scheduler_is_said_in_time_and_nobody_is_waited_for(tmp_path: Path) -> None:
    cluster = FakeCluster(never_done={0})

    def lose() -> None:
        cluster.is_gone = True

    cluster.on_check = lose
    with pytest.raises(ClusterLostError, match="scheduler"):
        run(cluster, tmp_path)
    assert len(cluster.cancelled) == 1


def test_a_stop_waits_for_units_under_way_and_keeps_what_they_answer(tmp_path: Path) -> None:
    heard: list[int] = []
    cluster = FakeCluster(num_workers=3)
    resources = at(cluster, tmp_path)
    with resources.executor.open(rows_work(tmp_path / "rows", BLOCKS), resources) as workers:
        running = workers.run(BLOCKS, GIVEN, lambda block, _: heard.append(block.index))
        next(running)
        running.close()  # as a stop does, which is raised wherever the caller is
    assert not cluster.cancelled
    assert sorted(heard) == sorted(index for _, indices in cluster.sent for index in indices)


def test_a_stop_gives_up_units_that_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "LEAVE_SECONDS", 0.05)
    cluster = FakeCluster(never_done={0})

    def stop(*_: Any) -> None:
        raise StopRequestedError("stopped")

    resources = at(cluster, tmp_path)
    with (
        resources.executor.open(rows_work(tmp_path / "rows", BLOCKS), resources) as workers,
        pytest.raises(StopRequestedError),
    ):
        list(workers.run(BLOCKS, GIVEN, stop))
    assert len(cluster.cancelled) == 1
    assert cluster.checks > 1


def test_rounds_follow_each_other_on_one_open_work(tmp_path: Path) -> None:
    cluster = FakeCluster()
    resources = at(cluster, tmp_path)
    with resources.executor.open(rows_work(tmp_path / "rows", BLOCKS), resources) as workers:
        totals = [sum(record.total for _, record in workers.run(BLOCKS, {"factor": factor})) for factor in (1, 2)]
    assert totals == [sum(range(160)), 2 * sum(range(160))]
    assert len(cluster.closed) == 1


def test_a_worker_that_came_later_with_other_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this worker has another ecgl_scale") as caught:
        run(FakeCluster(code="1.0-older"), tmp_path)
    assert "on worker worker w" in str(caught.value.where)
