"""From keys to rows and back, over mapped files: nothing that grows with the graph is held in memory.

    keys.arrow         column ``key`` in row order, batches of ``BATCH_ROWS``: text or int64
    key-index.arrow    columns ``code`` and ``row`` in one batch, sorted by both

The code of a number is the number; that of a text is its hash (``ecgl_kernels.text_hash``), and whoever finds a row by
it compares the text itself. Every generation of a store has both files, for its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ecgl_kernels.text_hash import hash_texts
from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.store.checked import checked_ids, corrupt, expected_file
from ecgl_scale.store.compose import folders_with_rows, generation_infos
from ecgl_scale.store.dropped import Dropped, open_dropped
from ecgl_scale.store.files import LocalFiles, StoreFiles
from ecgl_scale.store.format import KEY_INDEX_NAME, KEYS_NAME, Manifest
from ecgl_scale.store.ragged import map_checked

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class KeyFile:
    """One of the two files, and how it was written."""

    files: StoreFiles
    name: str
    written: WrittenFile

    @property
    def path(self) -> Path:
        """The file, there to be opened."""
        return self.files.path(self.name)

    def open(self, *, check_crc: bool) -> pa.RecordBatchFileReader:
        """Map the file."""
        mapped = map_checked(self.path, self.written, check_crc=check_crc)
        try:
            return pa.ipc.open_file(mapped)
        except pa.ArrowException as error:
            raise corrupt(self.path, f"is not an Arrow file: {error}") from error


@dataclass(frozen=True)
class KeyPart:
    """The keys of one generation."""

    keys: KeyFile
    index: KeyFile
    first_row: int
    num_rows: int
    is_checked: bool = False
    """Whether the bytes are known to be those that were written."""

    @cached_property
    def _reader(self) -> pa.RecordBatchFileReader:
        return self.keys.open(check_crc=not self.is_checked)

    @cached_property
    def codes_and_rows(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The index, as views of the mapped file."""
        try:
            batch = self.index.open(check_crc=not self.is_checked).get_batch(0)
            codes, rows = (as_numpy(column) for column in batch.columns)
        except (pa.ArrowException, IndexError, ValueError) as error:
            raise corrupt(self.index.path, f"is no index of keys: {error}") from error
        if codes.size != self.num_rows:
            raise corrupt(self.index.path, f"has {codes.size:,} keys, not {self.num_rows:,}")
        if rows.size and int(rows.max()) >= self.num_rows:
            raise corrupt(self.index.path, f"leads beyond row {self.num_rows - 1:,}")
        return codes, rows

    def batch(self, index: int) -> pa.Array:
        """Keys of the rows from ``index * BATCH_ROWS`` on."""
        return self._reader.get_batch(index).column(0)

    def keys_of(self, rows: NDArray[np.int64]) -> pa.Array:
        """Keys of rows of this part, counted from its first."""
        order = np.argsort(rows, kind="stable")
        batches, starts = np.unique(rows[order] // BATCH_ROWS, return_index=True)
        taken = [self.batch(0).slice(0, 0)]
        for batch, ids in zip(batches, np.split(rows[order], starts[1:]), strict=False):
            taken.append(self.batch(int(batch)).take(as_arrow(ids - batch * BATCH_ROWS)))
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        return pa.concat_arrays(taken).take(as_arrow(places))

    def find(self, keys: pa.Array, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Rows of keys with these codes, counted from the first of this part; -1 where there is none."""
        own_codes, own_rows = self.codes_and_rows
        found = np.full(codes.size, -1, np.int64)
        open_ = np.argsort(codes)  # in the order of the index, so that a page of it is looked at once
        places = np.searchsorted(own_codes, codes[open_])
        while open_.size:
            is_near = places < own_codes.size
            open_, places = open_[is_near], places[is_near]
            is_near = own_codes[places] == codes[open_]
            open_, places = open_[is_near], places[is_near]
            rows = own_rows[places].astype(np.int64)
            is_same = np.ones(rows.size, np.bool_)
            if pa.types.is_string(keys.type):
                is_same = pc.equal(self.keys_of(rows), keys.take(as_arrow(open_))).to_numpy(zero_copy_only=False)
            found[open_[is_same]] = rows[is_same]
            open_, places = open_[~is_same], places[~is_same] + 1
        return found


class StoreKeys:
    """The keys of a store: of all its generations, in order."""

    def __init__(self, name: str, type_: str, parts: Sequence[KeyPart], dropped: Dropped | None = None) -> None:
        self.name = name
        self.type = type_
        self.parts = tuple(parts)
        self.dropped = dropped
        """Nodes that are no longer there: their keys are unknown, and may come again."""

    def joined(self, more: StoreKeys, first_row: int) -> StoreKeys:
        """These keys, and those of nodes whose rows follow from ``first_row`` on."""
        new = [replace(part, first_row=part.first_row + first_row) for part in more.parts]
        return StoreKeys(self.name, self.type, (*self.parts, *new), self.dropped)

    def describe(self) -> Json:
        """What ``open`` needs in a process that sees the same files."""
        parts = [
            {
                "directory": str(part.keys.files.directory.absolute()),
                "keys": [part.keys.name, *astuple(part.keys.written)],
                "index": [part.index.name, *astuple(part.index.written)],
                "rows": [part.first_row, part.num_rows],
            }
            for part in self.parts
        ]
        dropped = None if self.dropped is None else self.dropped.describe()
        return {"name": self.name, "type": self.type, "parts": parts, "dropped": dropped}

    @classmethod
    def open(cls, description: Json) -> StoreKeys:
        """Open the files that another process has described."""
        parts = []
        for about in description["parts"]:
            files = LocalFiles(Path(about["directory"]))
            keys, index = (
                KeyFile(files, name, WrittenFile(*sizes)) for name, *sizes in (about["keys"], about["index"])
            )
            first_row, num_rows = about["rows"]
            parts.append(KeyPart(keys, index, first_row, num_rows, is_checked=True))
        dropped = None if description["dropped"] is None else Dropped.open(description["dropped"])
        return cls(description["name"], description["type"], parts, dropped)

    def with_dropped(self) -> StoreKeys:
        """These keys, and behind them those of nodes that were dropped, unless they came again."""
        return self if self.dropped is None else _AllKeys(self)

    def rows_of(self, keys: Any) -> NDArray[np.int64]:
        """Rows of keys, an Arrow array or any sequence of them; -1 for a key that no node has."""
        given = self._as_keys(keys)
        codes = codes_of(given)
        rows = np.full(len(given), -1, np.int64)
        for part in self.parts:
            open_ = np.flatnonzero(rows < 0)
            if not open_.size:
                break
            found = part.find(given.take(as_arrow(open_)), codes[open_])
            found = np.where(found < 0, -1, found + part.first_row)
            if self.dropped is not None:
                found[self.dropped.among(found)] = -1
            rows[open_] = found
        return rows

    def keys_of(self, rows: Any) -> pa.Array:
        """Keys of rows, in their order."""
        ids = checked_ids(rows, self.parts[-1].first_row + self.parts[-1].num_rows)
        if len(self.parts) == 1:
            return self.parts[0].keys_of(ids)
        order = np.argsort(ids, kind="stable")
        cuts = np.searchsorted(ids[order], [part.first_row for part in self.parts[1:]])
        found = [
            part.keys_of(own - part.first_row) for part, own in zip(self.parts, np.split(ids[order], cuts), strict=True)
        ]
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        return pa.concat_arrays(found).take(as_arrow(places))

    def _as_keys(self, keys: Any) -> pa.Array:
        wanted = pa.string() if self.type == "string" else pa.int64()
        try:
            keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
            given = keys if isinstance(keys, pa.Array) else pa.array(keys, None if len(keys) else wanted)
            is_text = pa.types.is_string(given.type) or pa.types.is_large_string(given.type)
            if is_text != (self.type == "string") or given.null_count:
                raise pa.ArrowInvalid(f"they are {given.type} with {given.null_count} nulls")
            return given.cast(wanted)
        except (pa.ArrowException, TypeError) as error:
            expected = "text" if self.type == "string" else "whole numbers below 2^63"
            raise UsageError(f"these are no keys of column {self.name!r}: {error}", expected=expected) from error


class _AllKeys(StoreKeys):
    """Keys that also name dropped nodes."""

    def __init__(self, live: StoreKeys) -> None:
        super().__init__(live.name, live.type, live.parts)
        self._live_keys = live

    def rows_of(self, keys: Any) -> NDArray[np.int64]:
        """Rows of keys; that of a node that is there, if one is."""
        live = self._live_keys.rows_of(keys)
        return np.where(live < 0, super().rows_of(keys), live)


def open_keys(files: StoreFiles, manifest: Manifest) -> StoreKeys | None:
    """The keys of a store; None where its nodes have none."""
    if manifest.keys is None:
        return None
    infos = [info for info in generation_infos(manifest) if info.first_node < info.num_nodes]
    parts = []
    for folder, info in zip(folders_with_rows(manifest), infos, strict=True):
        keys, index = (
            KeyFile(files, name, expected_file(manifest.files, name, files.location).written)
            for name in (f"{folder}{KEYS_NAME}", f"{folder}{KEY_INDEX_NAME}")
        )
        parts.append(KeyPart(keys, index, info.first_node, info.num_nodes - info.first_node))
    return StoreKeys(manifest.keys.name, manifest.keys.type, parts, open_dropped(files, manifest))


def codes_of(keys: pa.Array) -> NDArray[Any]:
    """What the index is sorted by: the numbers themselves, or the hashes of texts."""
    if not pa.types.is_string(keys.type):
        return as_numpy(keys)
    codes = np.empty(len(keys), np.uint64)
    if len(keys):
        data = keys.buffers()[2]
        hash_texts(text_offsets(keys), np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), codes)
    return codes


def text_offsets(texts: pa.Array) -> NDArray[np.int32]:
    """Where each of some texts begins among the bytes of all, and where the last one ends."""
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
