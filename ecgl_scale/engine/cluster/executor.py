"""The executor of a cluster: units of blocks go to workers by name, records come back, rows stay in shared files.

A worker has one unit at a time and no more waits for it, so a unit that kills its worker takes nobody else's along, a
stop waits for one unit at most, and there is nothing to steal: who is done takes from our own queue. What is lost with
its worker, or fails for a passing reason, is tried three times in all, each time by another worker where there is one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ecgl_scale.base.events import Note, WorkerReported, WorkersHeard, WorkerStarted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.cluster.failure import unpack_error
from ecgl_scale.engine.cluster.handshake import WorkerFacts
from ecgl_scale.engine.cluster.unit_runner import Job
from ecgl_scale.engine.cluster.units import Unit, UnitQueue, UnitShape
from ecgl_scale.engine.record import PackedRecord, unpack_record
from ecgl_scale.engine.retry import MAX_TRIES
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import ClusterLostError, EcglError

if TYPE_CHECKING:
    from ecgl_scale.engine.resources import Resources

Record = TypeVar("Record")

WORKERS_SECONDS = 60.0
"""So long is waited for another worker when all are lost."""
LOOK_SECONDS = 1.0
"""So often is looked who is there."""
WAIT_SECONDS = 0.2
"""So often is looked while there is nobody."""
LEAVE_SECONDS = 30.0
"""So long is waited at a stop for units that are being worked on; batch systems kill after about as long."""


class Cluster(Protocol):
    """Workers in other processes, and messages to them."""

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        """The workers that were there when the command began."""
        ...

    def names(self) -> Mapping[str, str]:
        """Addresses of the workers that are there now, and their names."""
        ...

    def send(self, key: str, address: str, unit: tuple[str, str, str], on_done: Callable[[str], None]) -> None:
        """Let this worker run a unit (job, blocks, given); says its key when it is done."""
        ...

    def fetch(self, key: str) -> dict[str, Any] | None:
        """What the worker answered, once; None where it was lost with its answer; raises where the cluster is gone."""
        ...

    def cancel(self, key: str) -> None:
        """Nobody waits for this unit any more."""
        ...

    def close_job(self, name: str) -> None:
        """Let all workers close the work of a job."""
        ...

    def last_heard(self) -> Mapping[str, float]:
        """When each worker, by name, last gave a sign of life, in seconds since 1970."""
        ...

    def check(self) -> None:
        """Raise ``ClusterLostError`` where nobody will ever answer."""
        ...


@dataclass(frozen=True)
class ClusterExecutor:
    """Runs blocks on the workers of a cluster."""

    cluster: Cluster

    shares_memory = False

    @contextmanager
    def open(self, work: Work[Any, Record], resources: Resources) -> Iterator[ClusterWorkers[Record]]:
        """Workers that open the work when they get their first unit of it."""
        directory = None if resources.work is None else str(resources.work)
        job = Job(
            f"{work.name}-{uuid.uuid4().hex}", work.name, work.describe(), directory, resources.budget.total_bytes
        )
        shape = UnitShape(
            num_workers=len(self.cluster.facts),
            threads=min(worker.threads for worker in self.cluster.facts),
            one_at_a_time=work.uses_all_threads,
            has_small_records=work.has_small_records,
            in_any_order=work.in_any_order,
        )
        work.close()
        try:
            yield ClusterWorkers(self.cluster, job, shape, work.record, resources)
        finally:
            self.cluster.close_job(job.name)


class ClusterWorkers(Generic[Record]):
    """Workers that know one work."""

    def __init__(self, cluster: Cluster, job: Job, shape: UnitShape, kind: type[Any], resources: Resources) -> None:
        self._cluster = cluster
        self._job = job
        self._shape = shape
        self._kind = kind
        self._resources = resources
        self._roster = Roster(cluster)
        self._num_rounds = 0

    def run(
        self, blocks: Iterable[Block], given: Json = None, on_finished: Callable[[Block, Record], None] | None = None
    ) -> Iterator[tuple[Block, Record]]:
        """Records in the order of the blocks; ``on_finished`` hears of each as soon as it is there."""
        self._num_rounds += 1
        queue = UnitQueue(blocks, self._shape)
        under_way = _Round(self._roster, self._job, self._num_rounds, json.dumps(given), queue, self._resources)
        done: dict[int, Record] = {}

        def take(unit: Unit, answer: dict[str, Any]) -> None:
            for block, text, arrays in zip(unit.blocks, answer["texts"], answer["arrays"], strict=True):
                done[block.index] = unpack_record(self._kind, PackedRecord(text, arrays))
                if on_finished is not None:
                    on_finished(block, done[block.index])

        try:
            for unit, answer in under_way.answers():
                take(unit, answer)
                if self._shape.in_any_order:
                    for block in unit.blocks:
                        queue.give(block)
                        yield block, done.pop(block.index)
                while (next_block := queue.next_in(done)) is not None:
                    yield next_block, done.pop(next_block.index)
            self._shape = self._shape.after(under_way.seconds)
        finally:
            for unit, answer in under_way.leave():
                take(unit, answer)


class Roster:
    """Who is there: looked up now and then, as workers come and go."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._names: dict[str, str] = {}
        self._looked_at = float("-inf")

    def names(self, work: str) -> dict[str, str]:
        """Addresses and names, in order of addresses; waits where there is nobody."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return self._names
        deadline = time.monotonic() + WORKERS_SECONDS
        while not (names := self.cluster.names()):
            if time.monotonic() > deadline:
                raise ClusterLostError("all workers are gone", where=work)
            time.sleep(WAIT_SECONDS)
        self._names, self._looked_at = dict(sorted(names.items())), time.monotonic()
        return self._names


class _Round:
    """One round under way: who works on which unit, and what is still to do."""

    def __init__(
        self, roster: Roster, job: Job, number: int, given: str, queue: UnitQueue, resources: Resources
    ) -> None:
        self._roster = roster
        self._cluster = roster.cluster
        self._job = job
        self._job_text = job.as_text()
        self._number = number
        self._given = given
        self._queue = queue
        self._resources = resources
        self._names: dict[str, str] = {}
        self._arrived: SimpleQueue[str] = SimpleQueue()
        self._running: dict[str, tuple[Unit, str]] = {}
        self._tries: dict[int, int] = {}
        self._failed_at: dict[int, set[str]] = {}
        self._to_try_again: list[Unit] = []
        self.seconds = 0.0
        """What all units have taken together."""

    def answers(self) -> Iterator[tuple[Unit, dict[str, Any]]]:
        """Units as they are done, with what their worker says of them."""
        while True:
            self._look_around()
            self._hand_out()
            if not self._running:
                return
            key = self._next_done()
            if key not in self._running:  # it is time to look, or the unit was taken back meanwhile
                continue
            unit, address = self._running.pop(key)
            answer = self._cluster.fetch(key)
            if answer is None:
                self._try_again(unit, address, self._loss(unit, address))
            elif "error" in answer:
                self._try_again(unit, address, self._failure(unit, answer))
            else:
                self._report(unit, answer)
                yield unit, answer

    def _look_around(self) -> None:
        """Find out who is there, and take back what was lost with those who are not."""
        self._names = self._roster.names(self._job.work)
        for key, (unit, address) in list(self._running.items()):
            if address not in self._names:
                del self._running[key]
                self._cluster.cancel(key)
                self._try_again(unit, address, self._loss(unit, address))

    def _hand_out(self) -> None:
        """Give a unit to each worker that has none."""
        busy = {address for _, address in self._running.values()}
        for owner, address in enumerate(self._names):
            if address in busy:
                continue
            unit = self._take_failed(address) or self._queue.take(owner, len(self._names))
            if unit is None:
                continue
            tries = self._tries[unit.index] = self._tries.get(unit.index, 0) + 1
            key = f"{self._job.name}-{self._number}-{unit.index}-{tries}"
            self._running[key] = (unit, address)
            self._resources.on_event(WorkerStarted(self._names[address], self._job.work))
            self._cluster.send(key, address, (self._job_text, unit.as_text(), self._given), self._arrived.put)

    def _take_failed(self, address: str) -> Unit | None:
        """A unit that others have failed at; those who have failed take it only when everybody has."""
        for unit in self._to_try_again:
            failed_at = self._failed_at[unit.index]
            if address not in failed_at or failed_at.issuperset(self._names):
                self._to_try_again.remove(unit)
                return unit
        return None

    def _next_done(self) -> str | None:
        """The next unit that is done; None when it is time to look who is there."""
        try:
            return self._arrived.get(timeout=LOOK_SECONDS)
        except Empty:
            self._cluster.check()
            self._resources.on_event(WorkersHeard(self._cluster.last_heard()))
            return None

    def _try_again(self, unit: Unit, address: str, found: tuple[EcglError, bool]) -> None:
        """Let another worker try, where that may help; else the job ends with the worker's own error."""
        error, is_passing = found
        tries = self._tries[unit.index]
        if tries >= MAX_TRIES or not is_passing:
            raise error
        self._resources.on_event(Note(f"try {tries} of {MAX_TRIES} failed: {error}", is_warning=True))
        self._failed_at.setdefault(unit.index, set()).add(address)
        self._to_try_again.append(unit)

    def _failure(self, unit: Unit, answer: dict[str, Any]) -> tuple[EcglError, bool]:
        packed = json.loads(answer["error"])
        error = unpack_error(packed, work=self._job.work, blocks=unit.name, worker=answer["worker"])
        return error, packed["is_passing"]

    def _loss(self, unit: Unit, address: str) -> tuple[EcglError, bool]:
        error = EcglError(
            f"a worker was lost, try {self._tries[unit.index]} of {MAX_TRIES}",
            where=f"{self._job.work}, {unit.name}, on worker {address}",
            fix="look at the workers' logs and memory; what is finished is kept for the same command",
        )
        return error, True

    def _report(self, unit: Unit, answer: dict[str, Any]) -> None:
        took = json.loads(answer["took"])
        self.seconds += took["seconds"]
        self._resources.on_event(
            WorkerReported(
                answer["worker"],
                self._job.work,
                len(unit.blocks),
                self._tries[unit.index],
                **took,
            )
        )

    def leave(self) -> Iterator[tuple[Unit, dict[str, Any]]]:
        """Wait for units that are being worked on, as nothing of ours may be written when the caller goes on.

        What they answer is given on, so that journals have it.
        """
        deadline = time.monotonic() + LEAVE_SECONDS
        try:
            while self._running and time.monotonic() < deadline:
                key = self._next_done()
                if key not in self._running:
                    there = self._cluster.names()
                    self._running = {key: at for key, at in self._running.items() if at[1] in there}
                    continue
                unit, _ = self._running.pop(key)
                answer = self._cluster.fetch(key)
                if answer is not None and "error" not in answer:
                    self._report(unit, answer)
                    yield unit, answer
        except ClusterLostError:
            pass  # nobody works on; why we leave is said by whoever made us
        finally:
            for key in self._running:
                self._cluster.cancel(key)
