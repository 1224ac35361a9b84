"""Work as data: the same rows from threads, from a worker that has only a description, and after failures."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine import executor as executor_module
from ecgl_scale.engine import work as work_module
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.local import LocalExecutor
from ecgl_scale.engine.place import FilePlace, HeldPlace, make_place, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import EcglError, UsageError
from ecgl_scale.units import GIB


@dataclass(frozen=True)
class Squares:
    """A record."""

    total: int
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Count:
    """A record without arrays."""

    num_rows: int


class SquareWork(Work[list[int], Squares]):
    """Squares of row numbers times a factor, put in a place."""

    name: ClassVar[str] = "test.squares"
    record: ClassVar[type[Any]] = Squares

    def __init__(self, place: HeldPlace | FilePlace, hook: Callable[[Block], None] = lambda _: None) -> None:
        self.place = place
        self.hook = hook
        self.num_scratches = 0
        self.is_closed = False

    def describe(self) -> Json:
        return {"place": self.place.describe()}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> SquareWork:
        return cls(open_place(description["place"]))

    def scratch(self) -> list[int]:
        self.num_scratches += 1
        return []

    def run(self, block: Block, given: Json, scratch: list[int]) -> Squares:
        self.hook(block)
        scratch.append(block.index)
        rows = np.arange(block.start, block.stop, dtype=np.int64) ** 2 * given["factor"]
        self.place.write(block.start, rows)
        return Squares(int(rows.sum()), rows)

    def close(self) -> None:
        self.is_closed = True


class CountWork(SquareWork):
    """The same with a record that a journal can keep."""

    name: ClassVar[str] = "test.counts"
    record: ClassVar[type[Any]] = Count

    @classmethod
    def open(cls, description: Json, resources: Resources) -> CountWork:
        return cls(open_place(description["place"]))

    def run(self, block: Block, given: Json, scratch: list[int]) -> Any:
        super().run(block, given, scratch)
        return Count(block.num_rows)


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"test.squares": f"{__name__}:SquareWork", "test.counts": f"{__name__}:CountWork"}
    monkeypatch.setattr(work_module, "WORKS", {**work_module.WORKS, **own})


BLOCKS = split_blocks(103, 10)
CUTS = [*(block.start for block in BLOCKS), 103]
GIVEN = {"factor": 3}


def resources(threads: int = 2, executor: Any = None, work: Path | None = None) -> Resources:
    return Resources(MemoryBudget(GIB, "test"), threads, executor=executor or LocalExecutor(), work=work)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_local_records_come_in_block_order_and_rows_are_in_place(threads: int) -> None:
    place = make_place(resources(), "squares", CUTS, "int64")
    work = SquareWork(place, hook=lambda block: time.sleep(0.002 if block.index % 2 else 0))
    found = list(run_blocks(work, BLOCKS, resources(threads), given=GIVEN))
    assert [block for block, _ in found] == BLOCKS
    np.testing.assert_array_equal(place.read(0, 103), np.arange(103) ** 2 * 3)
    assert work.num_scratches <= threads
    assert work.is_closed


def test_no_more_blocks_than_threads_run_at_once_and_one_waits() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def hook(_: Block) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.003)
        with lock:
            running -= 1

    work = SquareWork(make_place(resources(), "squares", CUTS, "int64"), hook)
    list(run_blocks(work, BLOCKS, resources(3), given=GIVEN))
    assert 1 <= most <= 3


def test_records_in_any_order_come_when_they_are_ready_and_blocks_are_asked_for_when_a_thread_is_free() -> None:
    class AnyOrder(SquareWork):
        in_any_order: ClassVar[bool] = True

    asked: list[int] = []
    is_last_asked = threading.Event()

    def ask() -> Iterator[Block]:
        for block in BLOCKS:
            asked.append(block.index)
            if block is BLOCKS[-1]:
                is_last_asked.set()
            yield block

    work = AnyOrder(
        make_place(resources(), "squares", CUTS, "int64"),
        hook=lambda block: None if block.index else assert_soon(is_last_asked),
    )
    found: list[int] = []
    with LocalExecutor().open(work, resources(2)) as workers:
        for block, record in workers.run(ask(), GIVEN):
            assert record.rows[0] == 3 * block.start**2
            assert len(asked) <= len(found) + 2
            found.append(block.index)
    assert sorted(found) == [block.index for block in BLOCKS]
    assert found[0] != 0


def assert_soon(event: threading.Event) -> None:
    assert event.wait(20)


def test_the_first_error_ends_a_round_and_nobody_works_on_afterwards() -> None:
    begun: list[int] = []

    def hook(block: Block) -> None:
        begun.append(block.index)
        if block.index == 2:
            raise UsageError("this block cannot be")
        time.sleep(0.01)

    work = SquareWork(make_place(resources(), "squares", CUTS, "int64"), hook)
    with pytest.raises(UsageError, match="cannot be"):
        list(run_blocks(work, BLOCKS, resources(2), given=GIVEN))
    num_begun = len(begun)
    assert num_begun < len(BLOCKS)
    time.sleep(0.03)
    assert len(begun) == num_begun
    assert work.is_closed


def test_a_worker_that_knows_only_the_description_leaves_the_same_rows(tmp_path: Path) -> None:
    script = ScriptedExecutor(tmp_path / "counts")
    at = resources(executor=script, work=tmp_path)
    place = make_place(at, "squares", CUTS, "int64")
    assert isinstance(place, FilePlace)
    found = list(run_blocks(SquareWork(place), BLOCKS, at, given=GIVEN))
    local = list(run_blocks(SquareWork(make_place(resources(), "", CUTS, "int64")), BLOCKS, resources(), given=GIVEN))
    assert [record.total for _, record in found] == [record.total for _, record in local]
    np.testing.assert_array_equal(place.read(5, 98), np.arange(5, 98) ** 2 * 3)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_passing_failure_is_tried_again_and_others_are_not(tmp_path: Path) -> None:
    name = SquareWork.name
    script = ScriptedExecutor(
        tmp_path / "counts",
        failures={(name, 3): [OSError(errno.EIO, "disk"), OSError(errno.ESTALE, "gone")]},
        after={(name, 4): RuntimeError("the worker was lost")},
    )
    at = resources(executor=script, work=tmp_path)
    place = make_place(at, "squares", CUTS, "int64")
    list(run_blocks(SquareWork(place), BLOCKS, at, given=GIVEN))
    assert [script.times_run(name, index) for index in (2, 3, 4, 5)] == [1, 3, 2, 1]
    np.testing.assert_array_equal(place.read(0, 103), np.arange(103) ** 2 * 3)


@pytest.mark.parametrize(
    ("errors", "tries"),
    [
        ([OSError(errno.EIO, "disk")] * 5, 3),
        ([OSError(errno.ENOSPC, "full")] * 5, 1),
        ([UsageError("no")] * 5, 1),
        ([MemoryError()] * 5, 1),
        ([ZeroDivisionError()] * 5, 3),
    ],
)
def test_a_block_that_always_fails_ends_the_job_after_its_tries(
    errors: list[BaseException], tries: int, tmp_path: Path
) -> None:
    script = ScriptedExecutor(tmp_path / "counts", failures={(SquareWork.name, 6): errors})
    at = resources(executor=script, work=tmp_path)
    place = make_place(at, "squares", CUTS, "int64")
    with pytest.raises(type(errors[0])):
        list(run_blocks(SquareWork(place), BLOCKS, at, given=GIVEN))
    assert script.times_run(SquareWork.name, 6) == tries
    assert script.times_run(SquareWork.name, 7) == 0


def test_finished_blocks_are_not_run_again_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ecgl_scale.engine.journal.EVERY_SECONDS", 0.0)
    name = CountWork.name
    place = FilePlace(tmp_path / "rows", tuple(CUTS), "int64")
    broken = ScriptedExecutor(tmp_path / "counts", failures={(name, 6): [UsageError("stop")]})
    journal: RecordJournal[Count] = RecordJournal(tmp_path / "journal", {"job": 1}, Count)
    with pytest.raises(UsageError):
        list(run_blocks(CountWork(place), BLOCKS, resources(executor=broken, work=tmp_path), journal, GIVEN))
    whole = ScriptedExecutor(tmp_path / "counts")
    again: RecordJournal[Count] = RecordJournal(tmp_path / "journal", {"job": 1}, Count)
    found = list(run_blocks(CountWork(place), BLOCKS, resources(executor=whole, work=tmp_path), again, GIVEN))
    assert [record for _, record in found] == [Count(block.num_rows) for block in BLOCKS]
    assert [whole.times_run(name, block.index) for block in BLOCKS] == [1] * 6 + [2] + [1] * 4


def test_a_journal_of_another_job_is_not_gone_on_with(tmp_path: Path) -> None:
    journal: RecordJournal[Count] = RecordJournal(tmp_path, {"job": 1}, Count)
    journal.add(BLOCKS[0], Count(10))
    journal.save()
    other: RecordJournal[Count] = RecordJournal(tmp_path, {"job": 2}, Count)
    assert other.load() == {}
    same: RecordJournal[Count] = RecordJournal(tmp_path, {"job": 1}, Count)
    assert same.load() == {0: Count(10)}


def test_rows_in_memory_are_never_described() -> None:
    with pytest.raises(EcglError, match="another process"):
        SquareWork(HeldPlace(np.zeros(3, np.int64))).describe()


def test_every_kind_of_work_in_the_table_is_there_and_has_its_name() -> None:
    for name, home in work_module.WORKS.items():
        if not name.startswith("test."):
            module, _, kind = home.partition(":")
            found = getattr(__import__(module, fromlist=[kind]), kind)
            assert found.name == name
            assert issubclass(found, Work)
    assert executor_module.run_blocks is run_blocks
