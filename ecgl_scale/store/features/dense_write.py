"""How dense features lie on disk, and writing them: see ``dense`` for the shard files and why they are as they are.

A shard is written front to back while its rows stream by, so that no more than one chunk of it is ever held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ecgl_kernels.rows import first_nonfinite
from ecgl_scale.base.durable import DurableWriter, WrittenFile, crc32c_of, storage_errors, write_atomically
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.source import AnyArray, DenseSource
from ecgl_scale.units import MIB

DenseDtype = Literal["float32", "float16"]

CHUNK_BYTES = MIB
"""A gather reads whole chunks, so small ones waste less; 1 MiB also stays in cache between copy and checksum."""
BLOCK_BYTES = 32 * MIB
PIECE_BYTES = 8 * MIB
"""How much is asked of a source at once."""

CRC_BYTES = 4
_MISSING = np.iinfo(np.uint64).max
BITS: dict[str, tuple[np.dtype[Any], int]] = {
    "float32": (np.dtype("<u4"), 0x7F800000),
    "float16": (np.dtype("<u2"), 0x7C00),
}


@dataclass(frozen=True)
class DenseLayout:
    """How the rows are cut into chunks and blocks; follows from the shape alone, so equal features give equal bytes."""

    num_rows: int
    num_features: int
    dtype: DenseDtype
    rows_per_chunk: int
    rows_per_block: int

    @classmethod
    def plan(
        cls, num_rows: int, num_features: int, dtype: DenseDtype = "float32", *, is_even: bool = False
    ) -> DenseLayout:
        """Chunks of about 1 MiB, blocks of about 32 MiB, never less than a row.

        ``is_even``: chunks of almost equal size, so that few zeros fill up the last one.
        """
        if num_rows < 1 or num_features < 1 or dtype not in BITS:
            raise UsageError(
                "no such feature array",
                where=f"{num_rows} rows, {num_features} columns, {dtype}",
                expected="at least one row and one column, float32 or float16",
            )
        row_bytes = num_features * np.dtype(dtype).itemsize
        rows_per_chunk = min(max(CHUNK_BYTES // row_bytes, 1), num_rows)
        if is_even:
            rows_per_chunk = -(-num_rows // -(-num_rows // rows_per_chunk))
        chunks_per_block = min(max(BLOCK_BYTES // (rows_per_chunk * row_bytes), 1), -(-num_rows // rows_per_chunk))
        return cls(num_rows, num_features, dtype, rows_per_chunk, rows_per_chunk * chunks_per_block)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk without its crc."""
        return self.rows_per_chunk * self.num_features * np.dtype(self.dtype).itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of the rows of one whole block in memory."""
        return self.rows_per_block * self.num_features * np.dtype(self.dtype).itemsize

    def blocks(self) -> list[Block]:
        """All blocks, in row order."""
        return split_blocks(self.num_rows, self.rows_per_block)

    def num_chunks(self, block: Block) -> int:
        """Chunks stored in a block: those that hold rows."""
        return -(-block.num_rows // self.rows_per_chunk)

    def shard_name(self, block: Block) -> str:
        """File name of a block's shard."""
        return f"c.{block.index}.0"

    def shard_index(self, block: Block) -> bytes:
        """Zarr's index of a shard: offset and size of each chunk, its crc last."""
        chunks = np.arange(self.rows_per_block // self.rows_per_chunk, dtype="<u8")
        stored = self.chunk_bytes + CRC_BYTES
        entries = np.stack((chunks * stored, np.full_like(chunks, stored)), axis=1)
        entries[self.num_chunks(block) :] = _MISSING
        return entries.tobytes() + crc32c_of(entries).to_bytes(CRC_BYTES, "little")

    def shard_bytes(self, block: Block) -> int:
        """Size of a block's shard file."""
        return self.num_chunks(block) * (self.chunk_bytes + 2 * CRC_BYTES) + len(self.shard_index(block))


def write_dense(
    source: DenseSource, layout: DenseLayout, directory: Path, *, on_rows: Callable[[int], None]
) -> dict[str, WrittenFile]:
    """Write all rows of ``source`` into the new ``directory``; ``on_rows`` gets the number of rows just written.

    Returns size and crc32c of each file, by its name inside ``directory``. Raises ``InvalidInputError`` for values
    that are not finite (in the store's dtype), a wrong number of rows or columns, or no numbers at all.
    Memory: ``PIECE_BYTES`` of the source + one chunk + the writer's two buffers.
    """
    written = {"zarr.json": write_metadata(layout, directory)}
    everything = Block(0, 0, layout.num_rows)
    pieces = source.blocks(piece_rows(layout, source.dtype.itemsize))
    chunks = cut_chunks(pieces, layout, source.origin, everything)
    for block in layout.blocks():
        name = layout.shard_name(block)
        written[name] = write_shard(chunks, layout, block, directory / name, on_rows)
    next(chunks, None)  # runs the source to its end, where rows too many show
    return written


def write_shard(
    chunks: Iterator[tuple[AnyArray, int]],
    layout: DenseLayout,
    block: Block,
    path: Path,
    on_rows: Callable[[int], None] = lambda _: None,
) -> WrittenFile:
    """Write the next chunks as the shard of a block."""
    table = np.empty(layout.num_chunks(block), dtype="<u4")
    with DurableWriter(path) as writer:
        for position in range(table.size):
            chunk, num_rows = next(chunks)
            table[position] = crc32c_of(chunk)
            writer.write(chunk)
            writer.write(table[position : position + 1])
            on_rows(num_rows)
        writer.write(table)
        writer.write(layout.shard_index(block))
        return writer.finish()


def piece_rows(layout: DenseLayout, item_bytes: int) -> int:
    """How many rows are asked of a source at once, whose numbers have so many bytes."""
    row_bytes = layout.num_features * max(item_bytes, np.dtype(layout.dtype).itemsize)
    return max(min(PIECE_BYTES // row_bytes, layout.rows_per_block), 1)


def write_metadata(layout: DenseLayout, directory: Path) -> WrittenFile:
    """Write ``zarr.json``, in place of one that an earlier process may have left."""
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return write_atomically(directory / "zarr.json", describe_array(layout))


def describe_array(layout: DenseLayout) -> str:
    """What ``zarr.create_array`` writes for the layout, to the byte (a test compares).

    Zarr itself is not asked: an import of it takes a third of a second of every append.
    """
    num_features = layout.num_features
    checked = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    sharding = {
        "chunk_shape": [layout.rows_per_chunk, num_features],
        "codecs": checked,
        "index_codecs": checked,
        "index_location": "end",
    }
    chunks = {"chunk_shape": [layout.rows_per_block, num_features]}
    array = {
        "shape": [layout.num_rows, num_features],
        "data_type": layout.dtype,
        "chunk_grid": {"name": "regular", "configuration": chunks},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0.0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
        "dimension_names": ["row", "feature"],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(array, indent=2)


def cut_chunks(
    pieces: Iterable[AnyArray], layout: DenseLayout, origin: str, rows: Block
) -> Iterator[tuple[AnyArray, int]]:
    """Cut pieces of these rows into chunks of the store's dtype, checked; the last is filled up with zeros."""
    chunk = np.zeros((layout.rows_per_chunk, layout.num_features), dtype=np.dtype(layout.dtype).newbyteorder("<"))
    filled, row = 0, rows.start
    for piece in pieces:
        checked_piece(piece, layout.num_features, origin)
        if row + len(piece) > rows.stop:
            raise _wrong_rows(origin, f"more than {layout.num_rows}", layout)
        position = 0
        while position < len(piece):
            take = min(len(piece) - position, layout.rows_per_chunk - filled)
            taken, target = piece[position : position + take], chunk[filled : filled + take]
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(target, taken, casting="unsafe")
            _refuse_nonfinite(taken, target, row, origin, layout.dtype)
            position, filled, row = position + take, filled + take, row + take
            if filled == layout.rows_per_chunk:
                yield chunk, filled
                filled = 0
    if row != rows.stop:
        raise _wrong_rows(origin, str(row), layout)
    if filled:
        chunk[filled:] = 0
        yield chunk, filled


def checked_piece(piece: AnyArray, num_features: int, origin: str) -> None:
    """Refuse what is not rows of ``num_features`` numbers."""
    if piece.ndim != 2 or piece.shape[1] != num_features or piece.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"features are {piece.dtype} of shape {piece.shape}",
            where=origin,
            expected=f"rows of {num_features} numbers (floats, integers or booleans)",
        )


def _refuse_nonfinite(taken: AnyArray, target: AnyArray, first_row: int, origin: str, dtype: DenseDtype) -> None:
    bits_dtype, exponent = BITS[dtype]
    found = first_nonfinite(target.reshape(-1).view(bits_dtype), exponent)
    if found < 0:
        return
    row, column = divmod(found, target.shape[1])
    value, where = taken[row, column], f"{origin}, row {first_row + row}, column {column}"
    if np.isfinite(value):
        fix = "store float32 features" if dtype == "float16" else "scale the features down"
        raise InvalidInputError(f"{value} is too large for {dtype}", where=where, fix=fix)
    raise InvalidInputError(
        f"a feature is {value}", where=where, expected="finite numbers", fix="replace it by a number"
    )


def _wrong_rows(origin: str, found: str, layout: DenseLayout) -> InvalidInputError:
    return InvalidInputError(f"features have {found} rows", where=origin, expected=f"{layout.num_rows}, one a node")
