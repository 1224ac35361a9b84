"""Blocks are sent in units, each about a quarter of a worker's share of a round, and every unit has an owner.

A message to a worker costs milliseconds, so a unit has several blocks. A worker that owns the same units in every
round finds the files of its blocks in its page cache. One that is done with its own takes from whoever has most left:
nothing waits for the slowest. Which blocks are in a unit changes no bit, as blocks do not know of each other.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice

from ecgl_scale.engine.block import Block

UNITS_PER_WORKER = 4
"""At most, in a round: enough for others to help, few enough that messages cost nothing beside the work."""
UNIT_SECONDS = 1.0
"""Rounds that take less for each worker have one unit for each: a message takes some 15 ms on a busy machine."""
AHEAD_PER_WORKER = 8
"""So many blocks may be begun before the first that is not done: their records are held by the driver."""


@dataclass(frozen=True)
class Unit:
    """Blocks that one worker does at one go."""

    index: int
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        indices = ", ".join(str(block.index) for block in self.blocks[:4])
        return f"block{'s' * (len(self.blocks) > 1)} {indices}{', …' * (len(self.blocks) > 4)}"

    def as_text(self) -> str:
        """The JSON that travels."""
        return json.dumps([[block.index, block.start, block.stop] for block in self.blocks])


def read_blocks(text: str) -> list[Block]:
    """The blocks of a unit's text."""
    return [Block(index, start, stop) for index, start, stop in json.loads(text)]


@dataclass(frozen=True)
class UnitShape:
    """How the blocks of a work are put together."""

    num_workers: int
    threads: int
    """What a worker works with: a unit should keep all of them busy."""
    one_at_a_time: bool
    """Whether a block alone keeps a worker's threads busy."""
    has_small_records: bool
    """Whether any number of records may wait for one before them."""
    in_any_order: bool = False
    """Whether records are given on as they come."""
    units_per_worker: int = UNITS_PER_WORKER
    """How many units blocks that are dealt out are put into."""

    def after(self, seconds: float) -> UnitShape:
        """The shape of the next round, when all units of the last have taken so long together."""
        share = seconds / self.num_workers
        return replace(self, units_per_worker=max(1, min(UNITS_PER_WORKER, round(share / UNIT_SECONDS))))

    @property
    def is_dealt_out(self) -> bool:
        """Whether blocks are dealt out to units like cards, so that the heavy ones, which come first, are shared."""
        return self.has_small_records and not self.one_at_a_time

    @property
    def at_once(self) -> int:
        """How many blocks a worker works on at once."""
        return 1 if self.one_at_a_time else self.threads


def cut_units(blocks: Iterable[Block], shape: UnitShape) -> Iterator[Unit]:
    """Units of all blocks; where their number is not known, they are made as they are asked for."""
    if not (isinstance(blocks, Sequence) and shape.is_dealt_out):
        yield from _runs(iter(blocks), shape.at_once)
        return
    num_units = min(-(-len(blocks) // shape.at_once), shape.num_workers * shape.units_per_worker)
    for index in range(num_units):
        yield Unit(index, tuple(blocks[index::num_units]))


def _runs(blocks: Iterator[Block], num_blocks: int) -> Iterator[Unit]:
    index = 0
    while some := tuple(islice(blocks, num_blocks)):
        yield Unit(index, some)
        index += 1


class UnitQueue:
    """Units that wait, those of each owner apart, and the order in which records are given on."""

    def __init__(self, blocks: Iterable[Block], shape: UnitShape) -> None:
        listed = list(blocks) if isinstance(blocks, Sized) else None
        self._units = cut_units(blocks if listed is None else listed, shape)
        self._is_dealt_in_order = listed is None or not shape.is_dealt_out
        per_worker = 1 if shape.in_any_order else AHEAD_PER_WORKER  # long blocks are begun when they are asked for
        self._most_ahead = per_worker * shape.num_workers if self._is_dealt_in_order else None
        self._order: deque[Block] = deque(() if self._is_dealt_in_order or listed is None else listed)
        self._waiting: dict[int, deque[Unit]] = {}
        self._num_ahead = 0

    def take(self, owner: int, num_owners: int) -> Unit | None:
        """The next unit for an owner: one of its own, else the last of whoever has most."""
        self._deal(num_owners)
        own = self._waiting.get(owner)
        if own:
            return own.popleft()
        most = max(self._waiting.values(), key=len, default=None)
        return most.pop() if most else None

    def next_in(self, done: Container[int]) -> Block | None:
        """The block whose record is to be given on next, if it is among those that are done."""
        if not self._order or self._order[0].index not in done:
            return None
        self._num_ahead -= 1
        return self._order.popleft()

    def give(self, block: Block) -> None:
        """A block's record is given on out of its turn."""
        self._order.remove(block)
        self._num_ahead -= 1

    def _deal(self, num_owners: int) -> None:
        """Give units to their owners, all of them, or as many as may be ahead of the first that is not done."""
        while self._most_ahead is None or self._num_ahead < self._most_ahead:
            unit = next(self._units, None)
            if unit is None:
                return
            self._num_ahead += len(unit.blocks)
            if self._is_dealt_in_order:
                self._order.extend(unit.blocks)
            self._waiting.setdefault(unit.index % num_owners, deque()).append(unit)
