"""Dense features on disk: a Zarr v3 array ``[N, K]``, one shard file a Block, which any Zarr library reads.

The shards are written and read here and not through zarr-python: whole files, front to back, fsynced, with 18 MiB of
memory in all; and read with one copy, straight from the page cache to the array. zarr-python writes the metadata.

A shard file is ``chunk crc | chunk crc | ... | table | index crc``. The table, all chunk crcs once more, is ours; to
Zarr it is unused space, which the sharding codec allows. It is there because crc32c of any bytes followed by their
own crc32c is a constant: without it every whole shard of a store would have the same crc32c, and two swapped files
could not be told apart. With it, the manifest's crc32c of the file vouches for the table and the table for each
chunk, so a gather checks what it reads without reading the rest of the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.rows import Bits, join_crc32c, scatter_rows, shift_crc32c
from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.durable import WrittenFile, crc32c_of
from ecgl_scale.engine.block import Block, stream_blocks
from ecgl_scale.errors import UsageError
from ecgl_scale.store.checked import checked_ids, corrupt, expected_file, open_expected, read_exactly
from ecgl_scale.store.features.dense_write import BITS, CRC_BYTES, DenseDtype, DenseLayout, write_dense
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.source import CsrBlock, FloatArray
from ecgl_scale.units import MIB

__all__ = ["DenseDtype", "DenseFeatures", "DenseLayout", "write_dense"]

READ_BYTES = 4 * MIB
"""How much is read before its checksum is taken, from a cache that still holds it."""
MAX_BUFFERS = 1024
"""The most that one ``preadv`` takes (IOV_MAX)."""
GATHER_BYTES = 16 * MIB
"""How much a gather holds at once, besides its result."""

_CHUNK_AND_CRC = 0x48674BC7
"""crc32c of any bytes followed by their own crc32c, little-endian."""


class DenseFeatures(FeatureStore):
    """Dense features of a finished store; what it hands out is checked, but for ``read_span`` without ``check``."""

    kind: Literal["dense"] = "dense"

    def __init__(self, where: Path | StoreFiles, layout: DenseLayout, files: tuple[WrittenFile, ...]) -> None:
        super().__init__(layout.blocks(), files)
        self._where = StoreFiles.of(where)
        self.directory = self._where.location
        self.layout = layout
        self.num_rows = layout.num_rows
        self.num_features = layout.num_features
        self.num_values = layout.num_rows * layout.num_features
        self.dtype = np.dtype(layout.dtype)
        self._stored_bytes = layout.chunk_bytes + CRC_BYTES
        self._chunks_per_read = min(max(READ_BYTES // layout.chunk_bytes, 1), MAX_BUFFERS // 3)
        self._shifts = np.full(self._chunks_per_read, shift_crc32c(layout.chunk_bytes), np.uint32)
        self._tables: dict[int, NDArray[np.uint32]] = {}

    @classmethod
    def open(cls, where: Path | StoreFiles, layout: DenseLayout, expected: Mapping[str, WrittenFile]) -> DenseFeatures:
        """Open what ``write_dense`` wrote; ``expected`` is what it returned, read back from the manifest."""
        here = StoreFiles.of(where)
        directory = here.location
        record = expected_file(expected, "zarr.json", directory)
        path = here.path("zarr.json")
        text = bytearray(record.size_bytes)
        with open_expected(path, record) as descriptor:
            if not read_exactly(descriptor, [memoryview(text)], 0) or crc32c_of(text) != record.crc32c:
                raise corrupt(path, "differs from the manifest")
        found = json.loads(text)
        if (found["shape"], found["data_type"]) != ([layout.num_rows, layout.num_features], layout.dtype):
            raise corrupt(path, "describes another array than the manifest")
        files = tuple(expected_file(expected, layout.shard_name(block), directory) for block in layout.blocks())
        for block, file in zip(layout.blocks(), files, strict=True):
            if file.size_bytes != layout.shard_bytes(block):
                raise corrupt(here.directory / layout.shard_name(block), f"cannot have {file.size_bytes} bytes")
        return cls(here, layout, files)

    @property
    def row_bytes(self) -> int:
        """Bytes of every row on disk."""
        return self.layout.chunk_bytes // self.layout.rows_per_chunk

    @property
    def rows_per_read(self) -> int:
        """A chunk is read as a whole."""
        return self.layout.rows_per_chunk

    @property
    def block_bytes(self) -> int:
        """Memory of one whole block."""
        return self.layout.block_bytes

    def read(self, block: Block, out: FloatArray | None = None) -> FloatArray:
        """Rows of one block, into ``out`` where given. Memory: the result + a chunk's padding."""
        layout = self.layout
        shape = (block.num_rows, layout.num_features)
        if out is None:
            # Page-aligned, as some processors (Zen 3) copy at a quarter of their speed to 1-31 bytes past a page.
            out = aligned_bytes(block.num_rows * self.row_bytes).view(self.dtype).reshape(shape)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            where = f"{out.dtype} {out.shape}"
            raise UsageError("this array cannot take the block", where=where, expected=f"{self.dtype} {shape}")
        rows_bytes = out.reshape(-1).view(np.uint8)
        padding = np.empty(layout.num_chunks(block) * layout.chunk_bytes - rows_bytes.size, np.uint8)
        self._read_chunks(block, 0, layout.num_chunks(block), rows_bytes, padding)
        return out

    read_dense = read

    def read_csr(self, block: Block) -> CsrBlock:
        """Rows of one block without their zeros. Memory: the block twice."""
        return CsrBlock.of_dense(self.read(block))

    def read_columns(self, block: Block, first: int, stop: int, out: NDArray[Any]) -> None:
        """Columns of a block's rows, into ``out``. Memory: a chunk."""
        for start, rows in self.read_span(block.start, block.stop, self.chunk_buffer(), check=True):
            out[start - block.start : start - block.start + len(rows)] = rows[:, first:stop]

    @property
    def chunk_buffer_bytes(self) -> int:
        """Size of ``chunk_buffer()``."""
        return self._stored_bytes

    def chunk_buffer(self) -> NDArray[np.uint8]:
        """Memory for ``read_span``: one chunk, which stays in the processor's cache from reading to use."""
        return aligned_bytes(self._stored_bytes)

    def read_span(
        self, start: int, stop: int, buffer: NDArray[np.uint8], *, check: bool
    ) -> Iterator[tuple[int, FloatArray]]:
        """First row and rows of each chunk, or part of one, from row ``start`` to ``stop``, as views of ``buffer``.

        With ``check`` a chunk is compared with the manifest by the span that holds its first row, so spans that cover
        all rows have checked each chunk once. Without, it is for whoever reads again what was checked at its first
        reading. Chunk by chunk to one page-aligned place in cache is the fastest way from the page cache: several
        times that of mapping it, or of reading many chunks side by side.
        """
        layout = self.layout
        for block in self._blocks[start // layout.rows_per_block : -(-stop // layout.rows_per_block)]:
            path = self._where.path(layout.shard_name(block))
            first = (max(start, block.start) - block.start) // layout.rows_per_chunk
            end = -(-(min(stop, block.stop) - block.start) // layout.rows_per_chunk)
            with open_expected(path, self._files[block.index]) as descriptor:
                table = self._table(block, descriptor, path)
                for chunk in range(first, end):
                    chunk_start = block.start + chunk * layout.rows_per_chunk
                    whole = read_exactly(descriptor, [buffer], chunk * self._stored_bytes)
                    data = buffer[: layout.chunk_bytes]
                    is_checked = check and chunk_start >= start
                    if not whole or (is_checked and crc32c_of(data) != table[chunk]):
                        raise corrupt(path, f"differs from the manifest in chunk {chunk}")
                    rows = data.view(self.dtype).reshape(-1, self.num_features)[: block.stop - chunk_start]
                    begin = max(start - chunk_start, 0)
                    yield chunk_start + begin, rows[begin : stop - chunk_start]

    def will_need(self, start: int, stop: int) -> None:
        """Ask the system to read these rows meanwhile."""
        layout = self.layout
        for block in self._blocks[start // layout.rows_per_block : -(-stop // layout.rows_per_block)]:
            first = (max(start, block.start) - block.start) // layout.rows_per_chunk
            end = -(-(min(stop, block.stop) - block.start) // layout.rows_per_chunk)
            path = self._where.path(layout.shard_name(block))
            with open_expected(path, self._files[block.index]) as descriptor:
                offset, size = first * self._stored_bytes, (end - first) * self._stored_bytes
                os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def _read_chunks(
        self, block: Block, first_chunk: int, end_chunk: int, out: NDArray[np.uint8], padding: NDArray[np.uint8]
    ) -> None:
        """Chunks of a block to ``out``, checked; what the last is longer than ``out`` goes to ``padding``."""
        chunk_bytes = self.layout.chunk_bytes
        path = self._where.path(self.layout.shard_name(block))
        crcs = np.empty(end_chunk - first_chunk, "<u4")
        with open_expected(path, self._files[block.index]) as descriptor:
            table = self._table(block, descriptor, path)[first_chunk:end_chunk]
            for first in range(0, table.size, self._chunks_per_read):
                end = min(first + self._chunks_per_read, table.size)
                # Straight to their places: one call puts the chunks side by side and the crcs between them aside.
                buffers = []
                for chunk in range(first, end):
                    buffers.append(out[chunk * chunk_bytes :][:chunk_bytes])
                    buffers += [padding] if chunk == table.size - 1 else []
                    buffers.append(crcs[chunk : chunk + 1].view(np.uint8))
                whole = read_exactly(descriptor, buffers, (first_chunk + first) * self._stored_bytes)
                found = crc32c_of(out[first * chunk_bytes : end * chunk_bytes])
                if end == table.size and padding.size:
                    found = crc32c_of(padding, found)
                wanted = join_crc32c(table[first:end], self._shifts[: end - first])
                if not whole or found != wanted or (crcs[first:end] != table[first:end]).any():
                    where = f"chunks {first_chunk + first} to {first_chunk + end - 1}"
                    raise corrupt(path, f"differs from the manifest in {where}")

    def buffers(self, count: int = 3) -> list[FloatArray]:
        """Memory for ``stream(into=...)``. Memory: ``count * block_bytes``."""
        flat = [aligned_bytes(self.layout.block_bytes).view(self.dtype) for _ in range(count)]
        return [memory.reshape(-1, self.num_features) for memory in flat]

    def stream(
        self, *, read_ahead: int = 2, threads: int = 2, into: Sequence[FloatArray] | None = None
    ) -> Iterator[tuple[Block, FloatArray]]:
        """All blocks in order, the next few being read meanwhile.

        An array is valid until the next one is asked for, as its memory is used again. Whoever streams many times
        gives the same ``into = buffers(read_ahead + 1)`` each time, as the first touch of memory costs as much as
        reading into it. Memory: ``(read_ahead + 1) * block_bytes``.
        """
        memory = self.buffers(read_ahead + 1) if into is None else into

        def read(block: Block, slot: int) -> FloatArray:
            return self.read(block, memory[slot][: block.num_rows])

        return stream_blocks(self._blocks, read, ahead=len(memory) - 1, threads=threads)

    def rows(self, ids: Any, *, threads: int = 2) -> FloatArray:
        """Rows ``ids``, in that order, repeats allowed; each chunk that holds one is read once, neighbours together.

        Memory: the result + 32 bytes an id + ``GATHER_BYTES`` (or ``threads`` chunks, where those are larger).
        """
        wanted = checked_ids(ids, self.num_rows)
        out = np.empty((wanted.size, self.num_features), self.dtype)
        order = np.argsort(wanted, kind="stable")
        self.gather(wanted[order], order, out, threads=threads)
        return out

    def gather(self, wanted: NDArray[np.int64], order: NDArray[np.int64], out: FloatArray, *, threads: int) -> None:
        """Put the rows ``wanted``, which ascend, to the rows ``order`` of ``out``."""
        runs = self._runs(wanted, max(GATHER_BYTES // threads // self.layout.chunk_bytes, 1))
        threads = max(min(threads, len(runs)), 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="gather") as pool:
            for done in [pool.submit(self._gather, runs[t::threads], wanted, order, out) for t in range(threads)]:
                done.result()

    rows_dense = rows

    def rows_csr(self, ids: Any) -> CsrBlock:
        """Rows ``ids`` without their zeros. Memory: what ``rows`` takes, and the result."""
        return CsrBlock.of_dense(self.rows(ids))

    def count_values(self, ids: Any) -> int:
        """Count all values of the rows, as zeros are stored too."""
        return len(ids) * self.num_features

    def _runs(self, wanted: NDArray[np.int64], max_chunks: int) -> list[tuple[int, int, int]]:
        """First id, end of ids and number of chunks of each read: neighbouring chunks of one shard."""
        chunks = wanted // self.layout.rows_per_chunk
        firsts = np.flatnonzero(np.diff(chunks, prepend=-1))
        touched = chunks[firsts].tolist()
        ends = [*firsts[1:].tolist(), wanted.size]
        chunks_per_block = self.layout.rows_per_block // self.layout.rows_per_chunk
        runs: list[tuple[int, int, int]] = []
        for first, end, chunk, before in zip(firsts.tolist(), ends, touched, [-1, *touched], strict=False):
            joins = chunk == before + 1 and chunk % chunks_per_block and runs and runs[-1][2] < max_chunks
            if joins:
                runs[-1] = (runs[-1][0], end, runs[-1][2] + 1)
            else:
                runs.append((first, end, 1))
        return runs

    def _gather(
        self, runs: list[tuple[int, int, int]], wanted: NDArray[np.int64], order: NDArray[np.int64], out: FloatArray
    ) -> None:
        layout, bits_dtype = self.layout, BITS[self.layout.dtype][0]
        stored = layout.chunk_bytes + CRC_BYTES
        buffer = aligned_bytes(max((run[2] for run in runs), default=0) * stored)
        out_bits: Bits = out.view(bits_dtype)
        for first, end, num_chunks in runs:
            block = self._blocks[wanted[first] // layout.rows_per_block]
            path = self._where.path(layout.shard_name(block))
            start_chunk = int(wanted[first] - block.start) // layout.rows_per_chunk
            packed = buffer[: num_chunks * stored]
            with open_expected(path, self._files[block.index]) as descriptor:
                table = self._table(block, descriptor, path)
                whole = read_exactly(descriptor, [packed], start_chunk * stored)
            for position in range(num_chunks):
                chunk = packed[position * stored : (position + 1) * stored]
                found = crc32c_of(chunk[:-CRC_BYTES])
                if not whole or not found == table[start_chunk + position] == chunk[-CRC_BYTES:].view("<u4")[0]:
                    raise corrupt(path, f"differs from the manifest in chunk {start_chunk + position}")
            local = wanted[first:end] - (block.start + start_chunk * layout.rows_per_chunk)
            # In elements of the store's width: the crc between two chunks takes 4 bytes, one float32 or two float16.
            starts = local * layout.num_features + local // layout.rows_per_chunk * (CRC_BYTES // bits_dtype.itemsize)
            scatter_rows(packed.view(bits_dtype), starts, order[first:end], out_bits)

    def _table(self, block: Block, descriptor: int, path: Path) -> NDArray[np.uint32]:
        """The crcs of a shard's chunks; at the shard's first use, checked against the manifest's crc of the file."""
        if block.index in self._tables:
            return self._tables[block.index]
        layout, num_chunks = self.layout, self.layout.num_chunks(block)
        stored = layout.chunk_bytes + CRC_BYTES
        index = layout.shard_index(block)
        table, found = np.empty(num_chunks, dtype="<u4"), bytearray(len(index))
        whole = read_exactly(descriptor, [table.view(np.uint8), memoryview(found)], num_chunks * stored)
        crcs = np.array([*[_CHUNK_AND_CRC] * num_chunks, crc32c_of(table), crc32c_of(found)], np.uint32)
        sizes = [shift_crc32c(size) for size in (stored, table.nbytes, len(index))]
        shifts = np.array([*[sizes[0]] * num_chunks, *sizes[1:]], np.uint32)
        if not whole or found != index or join_crc32c(crcs, shifts) != self._files[block.index].crc32c:
            raise corrupt(path, "differs from the manifest in its table of chunks")
        self._tables[block.index] = table
        return table
