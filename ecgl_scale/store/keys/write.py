"""Keys of nodes -> ``keys.arrow`` and ``key-index.arrow``, out of core; see ``read`` for the two files.

Keys are copied in row order and checked: each is there, and is not too long. Then their codes are read back and
sorted; two nodes with the same key have the same code, so they meet there, and both rows are named.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ecgl_scale.base.durable import DurableWriter, WrittenFile, storage_errors
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.files import LocalFiles
from ecgl_scale.store.format import KEY_INDEX_NAME, KEYS_NAME, KeySection
from ecgl_scale.store.keys.read import BATCH_ROWS, KeyFile, KeyPart, StoreKeys, codes_of
from ecgl_scale.store.keys.sort import PAIR_BYTES, rows_of_a_run, sort_pairs
from ecgl_scale.store.source import GraphSource, NameSource
from ecgl_scale.units import MIB, format_bytes

STAGE = "write keys"
MAX_KEY_BYTES = 1024
KEY_DISK_BYTES = 96
"""About what a node's key takes: some 30 bytes of text, the index, and the runs while it is sorted."""
SCRATCH_NAME = "keys.scratch-files"
BATCH_COPIES = 4
CHECKED_AT_ONCE = 1 << 14


def plan_keys(num_nodes: int, *, room_bytes: int) -> StagePlan:
    """What writing keys and their index needs: batches of keys, and the pairs that are sorted at once."""
    batches = BATCH_COPIES * BATCH_ROWS * 64 + 8 * MIB
    run_rows = rows_of_a_run(room_bytes - batches, num_nodes)
    formula = f"{PAIR_BYTES} bytes for each of {run_rows:,} keys sorted at once + {format_bytes(batches)} of batches"
    return StagePlan("keys", run_rows * PAIR_BYTES + batches, formula, setting="memory")


@dataclass(frozen=True, eq=False)
class WrittenKeys:
    """Both files, what the manifest says of them, and the keys, open."""

    section: KeySection
    files: dict[str, WrittenFile]
    keys: StoreKeys


def write_keys(graph: GraphSource, directory: Path, resources: Resources) -> WrittenKeys | None:
    """Write both files, where the nodes of a graph have keys."""
    if graph.keys is None:
        return None
    source, num_nodes = graph.keys, graph.num_nodes
    room_bytes = resources.room_bytes - RESERVE_BYTES
    plan = plan_keys(num_nodes, room_bytes=room_bytes)
    resources.require(RESERVE_BYTES + plan.host_bytes, stage=plan.stage, formula=plan.formula)
    resources.on_event(StageStarted(STAGE, num_nodes, "rows"))
    for name in (KEYS_NAME, KEY_INDEX_NAME):
        (directory / name).unlink(missing_ok=True)  # of a build that goes on
    written = _write_column(source, num_nodes, directory / KEYS_NAME, resources.on_event)
    files = LocalFiles(directory)
    keys = KeyFile(files, KEYS_NAME, written)
    unsorted = KeyPart(keys, keys, 0, num_nodes, is_checked=True)
    scratch = directory / SCRATCH_NAME
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with storage_errors(scratch):
        pairs = sort_pairs(
            (codes_of(unsorted.batch(index)) for index in range(-(-num_nodes // BATCH_ROWS))),
            scratch,
            run_rows=rows_of_a_run(room_bytes - plan_keys(0, room_bytes=room_bytes).host_bytes, num_nodes),
            row_dtype=np.dtype(np.uint32 if num_nodes < 1 << 32 else np.uint64),
            check=partial(_refuse_duplicates, source, unsorted),
        )
        index = _write_index(pairs, directory / KEY_INDEX_NAME)
    del pairs
    shutil.rmtree(scratch)
    part = KeyPart(keys, KeyFile(files, KEY_INDEX_NAME, index), 0, num_nodes, is_checked=True)
    section = KeySection(source.name, source.type)
    return WrittenKeys(
        section, {KEYS_NAME: written, KEY_INDEX_NAME: index}, StoreKeys(section.name, section.type, [part])
    )


def _write_column(source: NameSource, num_nodes: int, path: Path, on_event: EventSink) -> WrittenFile:
    schema = pa.schema([pa.field("key", pa.string() if source.type == "string" else pa.int64())])
    seen = 0
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            for batch in _exact_batches(source):
                seen += len(batch)
                if seen > num_nodes:
                    break
                writer.write_batch(pa.record_batch([batch], schema=schema))
                on_event(BlockFinished(STAGE, seen))
        if seen != num_nodes:
            raise InvalidInputError(
                f"there are {'more' if seen > num_nodes else 'fewer'} keys than nodes",
                where=source.origin,
                expected=f"{num_nodes:,}, one a node",
            )
        return sink.finish()


def _exact_batches(source: NameSource) -> Iterator[pa.Array]:
    held: list[pa.Array] = []
    held_rows = done = 0
    for block in source.blocks(BATCH_ROWS):
        _refuse_odd(source, block, done)
        done += len(block)
        held.append(block)
        held_rows += len(block)
        while held_rows >= BATCH_ROWS:
            whole = pa.concat_arrays(held)
            yield whole.slice(0, BATCH_ROWS)
            held = [whole.slice(BATCH_ROWS)]
            held_rows -= BATCH_ROWS
    if held_rows:
        yield pa.concat_arrays(held)


def _refuse_odd(source: NameSource, block: pa.Array, done: int) -> None:
    is_missing = block.is_null()
    if source.type == "string":
        lengths = pc.binary_length(block)
        _refuse(source, pc.greater(lengths, MAX_KEY_BYTES), done, f"a key has more than {MAX_KEY_BYTES:,} bytes")
        is_missing = pc.or_(is_missing, pc.equal(lengths, 0).fill_null(True))
    _refuse(source, is_missing, done, "a node has no key")


def _refuse(source: NameSource, is_bad: pa.Array, done: int, what: str) -> None:
    row = pc.index(is_bad, pa.scalar(True)).as_py()
    if row >= 0:
        raise InvalidInputError(what, where=source.where(done + row), expected="a key of its own for every node")


def _refuse_duplicates(source: NameSource, keys: KeyPart, codes: NDArray[Any], rows: NDArray[Any]) -> None:
    is_equal = codes[1:] == codes[:-1]
    places = np.flatnonzero(np.concatenate([is_equal, [False]]) | np.concatenate([[False], is_equal]))
    seen: dict[object, int] = {}
    for first in range(0, places.size, CHECKED_AT_ONCE):
        own = rows[places[first : first + CHECKED_AT_ONCE]].astype(np.int64)
        for row, key in zip(own.tolist(), keys.keys_of(own).to_pylist(), strict=True):
            if key in seen:
                where = f"{source.origin}, rows {source.first_row + seen[key]} and {source.first_row + row}"
                raise InvalidInputError(
                    f"two nodes have the key {key!r:.200}", where=where, expected="a key of its own for every node"
                )
            seen[key] = row


def _write_index(pairs: tuple[NDArray[Any], NDArray[Any]], path: Path) -> WrittenFile:
    columns = [pa.array(values) for values in pairs]
    schema = pa.schema([pa.field("code", columns[0].type), pa.field("row", columns[1].type)])
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        return sink.finish()
