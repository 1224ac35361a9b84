"""Keys of nodes -> ``keys.arrow`` and ``key-index.arrow``, out of core; see ``read`` for the two files.

Keys are copied in row order and checked: each is there, and is not too long. Then their codes are read back and
sorted; two nodes with the same key have the same code, so they meet there, and both rows are named.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import WRITE_BUFFER_BYTES, DurableWriter, WrittenFile, storage_errors
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.base.memory import give_back_freed
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.files import LocalFiles
from ecgl_scale.store.format import KEY_INDEX_NAME, KEYS_NAME, KeySection
from ecgl_scale.store.keys.read import BATCH_ROWS, KeyFile, KeyPart, StoreKeys, codes_of, text_offsets
from ecgl_scale.store.keys.sort import PAIR_BYTES, rows_of_a_run, sort_pairs
from ecgl_scale.store.source import GraphSource, NameSource
from ecgl_scale.units import MIB, format_bytes

STAGE = "write keys"
MAX_KEY_BYTES = 1024
KEY_DISK_BYTES = 96
"""About what a node's key takes: some 30 bytes of text, the index, and the runs while it is sorted."""
SCRATCH_NAME = "keys.scratch-files"
READ_BYTES = 48 * MIB
"""Batches of keys in several copies, and what Arrow keeps of those before."""
WRITE_BYTES = 2 * WRITE_BUFFER_BYTES + 4 * MIB
GIVE_BACK_AFTER = 8
CHECKED_AT_ONCE = 1 << 14


def plan_keys(num_nodes: int, *, room_bytes: int) -> StagePlan:
    """What writing keys and their index needs: batches of keys, and then the pairs that are sorted at once."""
    run_rows = rows_of_a_run(room_bytes - RESERVE_BYTES - WRITE_BYTES, num_nodes)
    needed = RESERVE_BYTES + max(READ_BYTES, run_rows * PAIR_BYTES + WRITE_BYTES)
    formula = f"40 MiB + {format_bytes(READ_BYTES)} of batches, or {PAIR_BYTES} bytes for each of {run_rows:,} keys"
    return StagePlan("keys", needed, formula, setting="memory")


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
    plan = plan_keys(num_nodes, room_bytes=resources.room_bytes)
    resources.require(plan.host_bytes, stage=plan.stage, formula=plan.formula)
    resources.on_event(StageStarted(STAGE, num_nodes, "rows"))
    for name in (KEYS_NAME, KEY_INDEX_NAME):
        (directory / name).unlink(missing_ok=True)  # of a build that goes on
    with _system_allocator():
        written = _write_column(source, num_nodes, directory / KEYS_NAME, resources.on_event)
    files = LocalFiles(directory)
    keys = KeyFile(files, KEYS_NAME, written)
    unsorted = KeyPart(keys, keys, 0, num_nodes, is_checked=True)
    codes_of(unsorted.batch(0))  # loads the kernel, before it is seen what is left
    give_back_freed()
    scratch = directory / SCRATCH_NAME
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with storage_errors(scratch):
        pairs = sort_pairs(
            (codes_of(unsorted.batch(index)) for index in range(-(-num_nodes // BATCH_ROWS))),
            scratch,
            run_rows=rows_of_a_run(resources.room_bytes - WRITE_BYTES, num_nodes),
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


@contextmanager
def _system_allocator() -> Iterator[None]:
    """Let Arrow take memory from the C library: its own allocator keeps 50 MiB of the text of a Parquet file."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


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
    for number, block in enumerate(source.blocks(BATCH_ROWS)):
        if number % GIVE_BACK_AFTER == 0:
            give_back_freed()
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
    is_missing = np.zeros(len(block), np.bool_)
    if block.null_count:
        is_missing = as_numpy(block.is_null())
    if source.type == "string" and len(block):
        lengths = np.diff(text_offsets(block))
        _refuse(source, lengths > MAX_KEY_BYTES, done, f"a key has more than {MAX_KEY_BYTES:,} bytes")
        is_missing = is_missing | (lengths == 0)
    _refuse(source, is_missing, done, "a node has no key")


def _refuse(source: NameSource, is_bad: NDArray[np.bool_], done: int, what: str) -> None:
    if is_bad.any():
        row = done + int(np.argmax(is_bad))
        raise InvalidInputError(what, where=source.where(row), expected="a key of its own for every node")


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
    columns = [as_arrow(values) for values in pairs]
    schema = pa.schema([pa.field("code", columns[0].type), pa.field("row", columns[1].type)])
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        return sink.finish()
