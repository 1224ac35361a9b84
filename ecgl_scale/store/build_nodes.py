"""What a build writes of nodes: their features and their columns, streamed from the source."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.resources import Resources
from ecgl_scale.store.build_journal import BuildJournal
from ecgl_scale.store.edges.write import has_files
from ecgl_scale.store.features.dense_work import ShardRecord, write_dense_shards
from ecgl_scale.store.features.files import WriteShards, write_features
from ecgl_scale.store.format import DENSE_DIRECTORY, NODES_NAME, FeatureSection
from ecgl_scale.store.nodes import WrittenColumns, write_columns
from ecgl_scale.store.source import GraphSource


def build_features(
    source: GraphSource,
    store: Path,
    features_as: str,
    dtype: str,
    resources: Resources,
    journal: BuildJournal | None = None,
    *,
    is_even: bool = False,
) -> tuple[FeatureSection | None, dict[str, WrittenFile]]:
    """Write the source's features below ``store``; without a journal, by this process alone."""
    if source.features is None:
        return None, {}
    resources.on_event(StageStarted("write features", source.num_nodes, "rows"))
    on_rows = _RowCounter("write features", resources.on_event)
    write_shards: WriteShards | None = None
    if journal is not None:
        directory = store / DENSE_DIRECTORY
        shards: RecordJournal[ShardRecord] = journal.records(
            "features", ShardRecord, lambda record: has_files(directory, {record.name: [record.size_bytes, 0]})
        )
        write_shards = partial(
            write_dense_shards, resources=resources, journal=shards, work=journal.directory, on_rows=on_rows
        )
    return write_features(
        source.features,
        source.num_nodes,
        store,
        requested=features_as,
        dtype=dtype,
        on_rows=on_rows,
        write_shards=write_shards,
        is_even=is_even,
    )


def build_columns(
    source: GraphSource, store: Path, on_event: EventSink, *, known_classes: int = 0
) -> WrittenColumns | None:
    """Write the source's columns below ``store``; the first ``known_classes`` classes have nodes elsewhere."""
    columns = source.number_columns
    if not columns:
        return None
    on_event(StageStarted("write node columns", source.num_nodes, "rows"))
    (store / NODES_NAME).unlink(missing_ok=True)  # of a build that goes on
    return write_columns(
        store / NODES_NAME,
        columns,
        source.num_nodes,
        num_classes=source.num_classes,
        may_lack_classes=source.is_part,
        known_classes=known_classes,
        on_rows=_RowCounter("write node columns", on_event),
    )


class _RowCounter:
    """Turns "so many rows more" into events that say how many in all."""

    def __init__(self, stage: str, on_event: EventSink) -> None:
        self._stage = stage
        self._on_event = on_event
        self._done = 0

    def __call__(self, num_rows: int) -> None:
        self._done += num_rows
        self._on_event(BlockFinished(self._stage, self._done))
