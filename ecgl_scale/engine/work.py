"""Work as data: what a stage does to one block, said so that any process that sees the same files can do it.

A kind of work is a class with a name. ``describe`` gives a few kilobytes of JSON (paths, settings, cuts, never arrays)
and ``open`` makes the same work of it elsewhere, once a worker. ``run`` puts the rows of a block in their place and
returns a small record. It is a function of the description, the block and what is ``given`` to the round, so running
it twice, at once or later, anywhere, leaves the same bytes: that is what makes a lost worker cheap.

Threads: a work of which several blocks may run at once is called from all threads on one instance, each with a
``scratch`` of its own. One that uses all threads inside a block says so, and gets one block at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ecgl_scale.engine.block import Block
from ecgl_scale.errors import EcglError

if TYPE_CHECKING:
    from ecgl_scale.engine.resources import Resources

Json = Any
"""What ``json`` can write: None, numbers, text, lists and objects of those."""

Scratch = TypeVar("Scratch")
Record = TypeVar("Record")

WORKS: dict[str, str] = {
    "append.older": "ecgl_scale.store.edges.write_older:OlderWork",
    "evaluate.task": "ecgl_scale.session.evaluate:EvaluateWork",
    "graph.propagate": "ecgl_scale.graph.propagate:PropagateWork",
    "infer.prepare": "ecgl_scale.infer.works:PrepareWork",
    "infer.layers": "ecgl_scale.infer.works:LayerWork",
    "ingest.partition": "ecgl_scale.store.edges.partition:PartitionWork",
    "ingest.block": "ecgl_scale.store.edges.write:BlockWork",
    "ingest.tiles": "ecgl_scale.store.edges.write_tiles:TileWork",
    "ingest.check": "ecgl_scale.store.edges.segments:SegmentCheck",
    "ingest.features": "ecgl_scale.store.features.dense_work:FeatureWork",
    "store.live_edges": "ecgl_scale.store.drop:LiveEdgesWork",
    "learn.class_sums": "ecgl_scale.learn.class_sums_work:ClassSumsWork",
    "store.verify_bytes": "ecgl_scale.store.verify:ByteCheck",
    "store.verify_rows": "ecgl_scale.store.verify:RowCheck",
    "rank.attribute.accumulate": "ecgl_scale.rank.attribute_units:AccumulateWork",
    "rank.attribute.evaluate": "ecgl_scale.rank.attribute_units:EvaluateWork",
    "rank.attribute.strip_sums": "ecgl_scale.rank.attribute_strips:StripSumsWork",
    "rank.attribute.strip_values": "ecgl_scale.rank.attribute_strips:StripValuesWork",
    "rank.degrees": "ecgl_scale.rank.degrees:DegreeWork",
    "rank.diversity": "ecgl_scale.rank.distances:DistanceWork",
    "rank.sweep": "ecgl_scale.rank.sweep:SweepWork",
    "tasks.part_edges": "ecgl_scale.tasks.parting:PartEdgesWork",
    "tasks.part_rows": "ecgl_scale.tasks.parting:PartRowsWork",
    "sweep.run": "ecgl_scale.session.sweep.run_work:RunWork",
}
"""Where each kind of work is, by its name: a worker is told names from this table, never code."""


class Work(ABC, Generic[Scratch, Record]):
    """One kind of work; see the module for what is promised."""

    name: ClassVar[str]
    """As in ``WORKS``."""
    record: ClassVar[type[Any]]
    """A frozen dataclass: numbers, text, lists and objects of those, and arrays."""
    uses_all_threads: ClassVar[bool] = False
    """Whether a block is worked on by all threads, so that blocks follow each other."""
    has_small_records: ClassVar[bool] = False
    """Whether records are a few numbers: then any number of them may wait for a block before them that takes long."""
    in_any_order: ClassVar[bool] = False
    """Whether records come as blocks are done, not in the order of blocks: for blocks that take minutes each."""

    @abstractmethod
    def describe(self) -> Json:
        """Everything ``open`` needs, as JSON."""

    @classmethod
    @abstractmethod
    def open(cls, description: Json, resources: Resources) -> Work[Scratch, Record]:
        """Make the described work ready in this process."""

    def scratch(self) -> Scratch:
        """What a thread needs to itself; made once for each thread that works."""
        return None  # type: ignore[return-value]

    def expect(self, blocks: Sequence[Block]) -> None:
        """These blocks will be run next, in this order, by this worker: what can be read ahead may be."""

    @abstractmethod
    def run(self, block: Block, given: Json, scratch: Scratch) -> Record:
        """Do one block: put its rows in their place and return its record."""

    def close(self) -> None:
        """Let go of files and threads."""


def open_work(name: str, description: Json, resources: Resources) -> Work[Any, Any]:
    """The work of this name from its description."""
    if name not in WORKS:
        raise EcglError(f"there is no work called {name!r}", expected=", ".join(sorted(WORKS)))
    module_name, _, class_name = WORKS[name].partition(":")
    kind: type[Work[Any, Any]] = getattr(import_module(module_name), class_name)
    return kind.open(description, resources)
