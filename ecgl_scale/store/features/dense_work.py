"""Dense features as work: a shard is read from its source, checked and written by whoever is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ecgl_scale.base.durable import WrittenFile, atomic_file
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.store.features.dense_write import DenseLayout, cut_chunks, piece_rows, write_metadata, write_shard
from ecgl_scale.store.row_source import RowSource, describe_rows, open_rows
from ecgl_scale.store.source import AnyArray, DenseSource


@dataclass(frozen=True)
class ShardRecord:
    """A shard that is written."""

    name: str
    size_bytes: int
    crc32c: int


class FeatureWork(Work[None, ShardRecord]):
    """Shards of dense features. Memory of a thread: ``PIECE_BYTES`` of the source + one chunk + a writer's buffers."""

    name: ClassVar[str] = "ingest.features"
    record: ClassVar[type[Any]] = ShardRecord
    has_small_records: ClassVar[bool] = True

    def __init__(self, rows: RowSource, layout: DenseLayout, directory: Path, work: Path, about: Json) -> None:
        self._rows = rows
        self._layout = layout
        self._directory = directory
        self._work = work
        self._about = about

    def describe(self) -> Json:
        """Where rows come from and shards go to."""
        return {
            "rows": describe_rows(self._rows, self._work),
            "layout": asdict(self._layout),
            "directory": str(self._directory),
            "about": self._about,
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> FeatureWork:
        """Make the work again, in another process."""
        del resources
        directory, layout = Path(description["directory"]), DenseLayout(**description["layout"])
        return cls(open_rows(description["rows"]), layout, directory, directory, description["about"])

    def run(self, block: Block, given: Json, scratch: None) -> ShardRecord:
        """Write one shard, whole under another name, then renamed."""
        del given, scratch
        name = self._layout.shard_name(block)
        chunks = cut_chunks(self._pieces(block), self._layout, self._about["origin"], block)
        with atomic_file(self._directory / name, is_shared=True) as path:
            written = write_shard(chunks, self._layout, block, path)
        return ShardRecord(name, written.size_bytes, written.crc32c)

    def _pieces(self, block: Block) -> Iterator[AnyArray]:
        step = piece_rows(self._layout, self._about["item_bytes"])
        for start in range(block.start, block.stop, step):
            yield self._rows.read(start, min(start + step, block.stop))


def write_dense_shards(
    source: DenseSource,
    rows: RowSource,
    layout: DenseLayout,
    directory: Path,
    resources: Resources,
    *,
    journal: RecordJournal[ShardRecord],
    work: Path,
    on_rows: Callable[[int], None],
) -> dict[str, WrittenFile]:
    """Write the bytes that ``write_dense`` would, by workers that share no memory."""
    written = {"zarr.json": write_metadata(layout, directory)}
    about = {"origin": source.origin, "item_bytes": source.dtype.itemsize}
    shards = FeatureWork(rows, layout, directory, work, about)
    for block, record in run_blocks(shards, layout.blocks(), resources, journal):
        written[record.name] = WrittenFile(record.size_bytes, record.crc32c)
        on_rows(block.num_rows)
    return written
