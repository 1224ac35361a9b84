"""An executor that fails by a script, for tests of every stage: no luck, no clocks, no other processes.

It treats a work as another machine would. The work is described, the description goes through JSON, the work is opened
anew from it, and records go through bytes; nothing of the driver's memory is shared. A script says of a block how its
tries end. How often each block ran is in a file for each, so that also runs that were killed are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.record import pack_record, unpack_record
from ecgl_scale.engine.retry import MAX_TRIES, is_worth_another_try
from ecgl_scale.engine.work import Json, Work, open_work

if TYPE_CHECKING:
    from ecgl_scale.engine.resources import Resources

Record = TypeVar("Record")


@dataclass(frozen=True)
class ScriptedExecutor:
    """Runs blocks one after the other, each as its script says."""

    counts: Path
    """A directory of counters: how often each block of each work was begun."""
    failures: Mapping[tuple[str, int], Sequence[BaseException | None]] = field(default_factory=dict)
    """By name of the work and index of the block: what each try raises before it starts; None, or no entry, runs it."""
    after: Mapping[tuple[str, int], BaseException] = field(default_factory=dict)
    """What a block's first try raises when its rows are written, before its record arrives: a worker that is lost."""

    shares_memory = False

    @contextmanager
    def open(self, work: Work[Any, Record], resources: Resources) -> Iterator[ScriptedWorkers[Record]]:
        """A worker that knows the work from its description alone."""
        description = json.loads(json.dumps(work.describe()))
        work.close()
        opened = open_work(work.name, description, resources)
        try:
            yield ScriptedWorkers(self, opened)
        finally:
            opened.close()

    def times_run(self, name: str, index: int) -> int:
        """How often a block was begun."""
        path = self._counter(name, index)
        return len(path.read_bytes()) if path.exists() else 0

    def begin(self, name: str, index: int) -> int:
        """Count a try; returns how many there were before it."""
        path = self._counter(name, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b".")
        return self.times_run(name, index) - 1

    def _counter(self, name: str, index: int) -> Path:
        return self.counts / name / str(index)


class ScriptedWorkers(Generic[Record]):
    """The one worker of a scripted executor."""

    def __init__(self, script: ScriptedExecutor, work: Work[Any, Record]) -> None:
        self._script = script
        self._work = work
        self._scratch = work.scratch()

    def run(
        self, blocks: Iterable[Block], given: Json = None, on_finished: Callable[[Block, Any], None] | None = None
    ) -> Iterator[tuple[Block, Record]]:
        """Records in order; a block that fails for a passing reason is tried again, three times in all."""
        given = json.loads(json.dumps(given))
        for block in blocks:
            record = self._try(block, given)
            if on_finished is not None:
                on_finished(block, record)
            yield block, record

    def _try(self, block: Block, given: Json) -> Record:
        while True:
            earlier = self._script.begin(self._work.name, block.index)
            try:
                return self._run_scripted(block, given, earlier)
            except Exception as error:
                if earlier + 1 >= MAX_TRIES or not is_worth_another_try(error):
                    raise

    def _run_scripted(self, block: Block, given: Json, earlier: int) -> Record:
        key = (self._work.name, block.index)
        script = self._script.failures.get(key, ())
        failure = script[earlier] if earlier < len(script) else None
        if failure is not None:
            raise failure
        packed = pack_record(self._work.run(block, given, self._scratch))
        if earlier == 0 and key in self._script.after:
            raise self._script.after[key]
        record: Record = unpack_record(self._work.record, packed)
        return record
