"""Who does the work: the face that every executor shows to a stage.

    with resources.executor.open(work, resources) as workers:
        for block, record in workers.run(blocks, given): ...

``open`` makes the work ready on every worker once; ``run`` may follow many times, as sweeps do. Records come in the
order of the blocks, whoever was done first, unless the work wants them ``in_any_order``. ``run_blocks`` is the two in
one for stages with a single round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json, Work

if TYPE_CHECKING:
    from ecgl_scale.engine.journal import RecordJournal
    from ecgl_scale.engine.resources import Resources

Record = TypeVar("Record")
Record_co = TypeVar("Record_co", covariant=True)


class Workers(Protocol[Record_co]):
    """Workers that have opened a work."""

    def run(
        self, blocks: Iterable[Block], given: Json = None, on_finished: Callable[[Block, Any], None] | None = None
    ) -> Iterator[tuple[Block, Record_co]]:
        """Run the work on each block, and give the records in their order; the first error ends it.

        Blocks are asked for as workers become free. ``given`` is what all blocks of this round are told: the number of
        a sweep, columns. ``on_finished`` hears of every record, also of one whose turn has not come: journals do.
        """
        ...


class Executor(Protocol):
    """Opens works on its workers."""

    @property
    def shares_memory(self) -> bool:
        """Whether workers see the memory of the process that asks: if not, rows travel in files."""
        ...

    def open(self, work: Work[Any, Record], resources: Resources) -> AbstractContextManager[Workers[Record]]:
        """Workers with this work open, until the end of the ``with``."""
        ...


def run_blocks(
    work: Work[Any, Record],
    blocks: Sequence[Block],
    resources: Resources,
    journal: RecordJournal[Record] | None = None,
    given: Json = None,
) -> Iterator[tuple[Block, Record]]:
    """Run a work on all blocks; records in block order, those a journal has without running anything."""
    with resources.executor.open(work, resources) as workers:
        yield from run_round(workers, blocks, journal, given)


def run_round(
    workers: Workers[Record], blocks: Iterable[Block], journal: RecordJournal[Record] | None = None, given: Json = None
) -> Iterator[tuple[Block, Record]]:
    """A round of a work that is open; what was finished in it is in the journal, however the round ends."""
    if journal is None:
        yield from workers.run(blocks, given)
        return
    finished, blocks = journal.load(), list(blocks)
    left = [block for block in blocks if block.index not in finished]
    running = workers.run(left, given, journal.add) if left else iter(())
    try:
        for block in blocks:
            yield (block, finished[block.index]) if block.index in finished else next(running)
    finally:
        if isinstance(running, Generator):
            running.close()  # what is under way is finished there
        journal.save()
