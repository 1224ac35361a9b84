"""A cluster in this process: workers are entries of a table, and what happens to their units is said by a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.cluster.handshake import WorkerFacts
from ecgl_scale.engine.cluster.source_code import source_digest
from ecgl_scale.engine.cluster.unit_runner import UnitRunner
from ecgl_scale.engine.cluster.units import read_blocks
from ecgl_scale.engine.place import FilePlace, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import ClusterLostError

NAME = "test.rows"
HOME = f"{__name__}:RowsWork"


@dataclass(frozen=True)
class Rows:
    """A record."""

    total: int


class RowsWork(Work[None, Rows]):
    """Row numbers times a factor, put in a place; blocks in ``errors`` fail."""

    name: ClassVar[str] = NAME
    record: ClassVar[type[Any]] = Rows
    has_small_records: ClassVar[bool] = True
    errors: ClassVar[dict[int, list[Exception]]] = {}
    """By block: what its tries raise, one after the other."""

    def __init__(self, place: FilePlace) -> None:
        self.place = place

    def describe(self) -> Json:
        return {"place": self.place.describe()}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> RowsWork:
        return cls(open_place(description["place"]))

    def run(self, block: Block, given: Json, scratch: None) -> Rows:
        if self.errors.get(block.index):
            raise self.errors[block.index].pop(0)
        rows = np.arange(block.start, block.stop, dtype=np.int64) * given["factor"]
        self.place.write(block.start, rows)
        return Rows(int(rows.sum()))


def rows_work(directory: Path, blocks: Sequence[Block]) -> RowsWork:
    return RowsWork(FilePlace(directory, (*(block.start for block in blocks), blocks[-1].stop), "int64"))


def facts_of(name: str, **changed: Any) -> WorkerFacts:
    given = {
        "name": name,
        "host": "here",
        "pid": 1,
        "threads": 1,
        "memory_bytes": 1 << 30,
        "memory_origin": "--memory",
        "code": {"ecgl_scale": "1"},
        "processor": "x86_64",
    }
    return WorkerFacts(**{**given, **changed})


@dataclass
class FakeCluster:
    """Runs a unit at once when it is sent; answers arrive when everybody has one, the last first."""

    num_workers: int = 2
    is_gone: bool = False
    never_done: set[int] = field(default_factory=set)
    """Blocks whose units nobody ever answers."""
    kills: dict[int, int] = field(default_factory=dict)
    """By block: how many workers that begin it are lost."""
    on_check: Callable[[], None] = lambda: None
    sent: list[tuple[str, list[int]]] = field(default_factory=list)
    """Address and blocks, as they were sent."""
    cancelled: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    checks: int = 0
    code: str = field(default_factory=source_digest)

    def __post_init__(self) -> None:
        self.addresses = [f"w{number}" for number in range(self.num_workers)]
        self._runners = {address: UnitRunner() for address in self.addresses}
        self._answers: dict[str, dict[str, Any]] = {}
        self._held: list[tuple[str, Callable[[str], None]]] = []

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        return tuple(facts_of(address, code={"ecgl_scale": self.code}) for address in self.addresses)

    def names(self) -> Mapping[str, str]:
        return {address: f"worker {address}" for address in self.addresses}

    def last_heard(self) -> Mapping[str, float]:
        return {f"worker {address}": 0.0 for address in self.addresses}

    def send(self, key: str, address: str, unit: tuple[str, str, str], on_done: Callable[[str], None]) -> None:
        indices = [block.index for block in read_blocks(unit[1])]
        self.sent.append((address, indices))
        if self.never_done.intersection(indices):
            return
        for index in indices:
            if self.kills.get(index, 0) > 0:
                self.kills[index] -= 1
                self.lose(address)
                return
        self._answers[key] = {**self._runners[address].run(*unit), "worker": f"worker {address}"}
        self._held.append((key, on_done))
        if len(self._held) >= len(self.addresses):
            self.deliver()

    def deliver(self) -> None:
        """Let what is done arrive, the last first."""
        while self._held:
            key, on_done = self._held.pop()
            on_done(key)

    def fetch(self, key: str) -> dict[str, Any] | None:
        self.check()
        return self._answers.pop(key)

    def lose(self, address: str) -> None:
        """A worker is lost; another one comes in its place."""
        self.addresses.remove(address)
        self.addresses.append(f"{address}'")
        self._runners[f"{address}'"] = UnitRunner()

    def cancel(self, key: str) -> None:
        self.cancelled.append(key)

    def close_job(self, name: str) -> None:
        self.closed.append(name)

    def check(self) -> None:
        self.checks += 1
        self.on_check()
        self.deliver()
        if self.is_gone:
            raise ClusterLostError("the scheduler of the cluster is gone")
