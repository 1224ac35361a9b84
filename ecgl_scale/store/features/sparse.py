"""Sparse features (bags of words) on disk: CSR in uncompressed Arrow, one file a block of rows, mapped and not copied.

A file holds one record batch: ``index: large_list<uint32>`` (columns, ascending) and ``value: large_list<float32>``,
with equal offsets. Arrow has no checksums of its own, so a file's first use compares the whole of it with the
manifest; only after that is it parsed. Mapped bytes are the page cache's, not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.rows import csr_columns, gather_csr
from ecgl_kernels.some_rows import find_bad_offsets
from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.durable import DurableWriter, WrittenFile, crc32c_of
from ecgl_scale.engine.block import Block, split_blocks, stream_blocks
from ecgl_scale.errors import InvalidInputError, StoreVersionError, UsageError
from ecgl_scale.store.checked import checked_ids, corrupt, expected_file, open_expected
from ecgl_scale.store.features.csr import clean_block, join_csr, to_dense
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.ragged import WHOLE_FROM_SHARE, map_sparingly
from ecgl_scale.store.source import CsrBlock, SparseSource
from ecgl_scale.units import MIB

FORMAT_VERSION = 1
BLOCK_BYTES = 24 * MIB
PIECES_PER_BLOCK = 8
"""A source is asked for this part of a block at once."""

_ROW_BYTES, _VALUE_BYTES = 16, 8
_MAX_FEATURES = 1 << 32


@dataclass(frozen=True)
class SparseLayout:
    """How the rows are cut into blocks."""

    num_rows: int
    num_features: int
    rows_per_block: int
    num_values: int

    @classmethod
    def plan(cls, num_rows: int, num_features: int, num_values: int) -> SparseLayout:
        """Blocks of about 24 MiB for rows of average length."""
        if num_rows < 1 or not 1 <= num_features <= _MAX_FEATURES or num_values < 0:
            raise UsageError(
                "no such sparse matrix",
                where=f"{num_rows} rows, {num_features} columns, {num_values} values",
                expected="at least one row, one column and at most 2^32 columns",
            )
        row_bytes = _ROW_BYTES + _VALUE_BYTES * -(-num_values // num_rows)
        return cls(num_rows, num_features, min(max(BLOCK_BYTES // row_bytes, 1), num_rows), num_values)

    def blocks(self) -> list[Block]:
        """All blocks, in row order."""
        return split_blocks(self.num_rows, self.rows_per_block)

    def file_name(self, block: Block) -> str:
        """File name of a block."""
        return f"{block.index:06d}.arrow"


def write_sparse(
    source: SparseSource, layout: SparseLayout, directory: Path, *, on_rows: Callable[[int], None]
) -> dict[str, WrittenFile]:
    """Write all rows of ``source`` into the new ``directory``; ``on_rows`` gets the number of rows just written.

    Returns size and crc32c of each file, by its name inside ``directory``. Raises ``InvalidInputError`` for columns out
    of range or twice in a row, values that are not finite, senseless offsets, or a wrong number of rows.
    Memory: twice the largest block (24 MiB where rows are about equally long) + the writer's buffers.
    """
    directory.mkdir()
    written: dict[str, WrittenFile] = {}
    pieces = _read_pieces(source, layout)
    for block in layout.blocks():
        parts: list[CsrBlock] = []
        while sum(part.num_rows for part in parts) < block.num_rows:
            parts.append(next(pieces))
        name = layout.file_name(block)
        written[name] = _write_block(join_csr(parts), block, directory / name)
        on_rows(block.num_rows)
    next(pieces, None)  # runs the source to its end, where rows too many show
    return written


def _read_pieces(source: SparseSource, layout: SparseLayout) -> Iterator[CsrBlock]:
    """Clean what a source yields and cut it at the ends of blocks."""
    row = 0
    for piece in source.blocks(max(layout.rows_per_block // PIECES_PER_BLOCK, 1)):
        clean = clean_block(piece, layout.num_features, origin=source.origin, first_row=row)
        num_rows = clean.num_rows
        if row + num_rows > layout.num_rows:
            raise _wrong_rows(source, f"more than {layout.num_rows}", layout)
        position = 0
        while position < num_rows:
            take = min(num_rows - position, layout.rows_per_block - row % layout.rows_per_block)
            yield clean.cut(position, position + take)
            position, row = position + take, row + take
    if row != layout.num_rows:
        raise _wrong_rows(source, str(row), layout)


def _wrong_rows(source: SparseSource, found: str, layout: SparseLayout) -> InvalidInputError:
    expected = f"{layout.num_rows}, one a node"
    return InvalidInputError(f"features have {found} rows", where=source.origin, expected=expected)


def _write_block(rows: CsrBlock, block: Block, path: Path) -> WrittenFile:
    import pyarrow as pa

    offsets = as_arrow(rows.indptr)
    columns = [pa.LargeListArray.from_arrays(offsets, as_arrow(array)) for array in (rows.indices, rows.values)]
    about = {"format": "ecgl_scale.features", "version": str(FORMAT_VERSION), "block": str(block.index)}
    batch = pa.record_batch(columns, names=["index", "value"]).replace_schema_metadata(about)
    with DurableWriter(path) as writer:
        with pa.ipc.new_file(writer, batch.schema) as arrow:
            arrow.write_batch(batch)
        return writer.finish()


def _fits(rows: CsrBlock, equal_offsets: bool, num_features: int) -> bool:
    """Whether kernels may index memory with these: a checksum shows that nobody damaged a file, not who made it."""
    ends = rows.indptr[0] == 0 and rows.indptr[-1] == rows.indices.size == rows.values.size and equal_offsets
    types = rows.indices.dtype == np.uint32 and rows.values.dtype == np.float32
    in_order = bool(np.all(rows.indptr[1:] >= rows.indptr[:-1]))
    return bool(ends and types and in_order and (rows.indices.size == 0 or rows.indices.max() < num_features))


class SparseFeatures(FeatureStore):
    """Sparse features of a finished store; a file is compared with the manifest before its first use."""

    kind: Literal["sparse"] = "sparse"

    def __init__(self, where: Path | StoreFiles, layout: SparseLayout, files: tuple[WrittenFile, ...]) -> None:
        super().__init__(layout.blocks(), files)
        self._where = StoreFiles.of(where)
        self.directory = self._where.location
        self.layout = layout
        self.num_rows = layout.num_rows
        self.num_features = layout.num_features
        self.num_values = layout.num_values
        self.dtype = np.dtype(np.float32)
        self._checked: set[int] = set()

    @classmethod
    def open(
        cls, where: Path | StoreFiles, layout: SparseLayout, expected: Mapping[str, WrittenFile]
    ) -> SparseFeatures:
        """Open what ``write_sparse`` wrote; ``expected`` is what it returned, read back from the manifest."""
        names = [layout.file_name(block) for block in layout.blocks()]
        here = StoreFiles.of(where)
        return cls(here, layout, tuple(expected_file(expected, name, here.location) for name in names))

    @property
    def row_bytes(self) -> int:
        """Offsets of a row, and an average one's columns and values."""
        return _ROW_BYTES + _VALUE_BYTES * self.num_values // self.num_rows

    @property
    def rows_per_read(self) -> int:
        """A block is mapped as a whole."""
        return self.layout.rows_per_block

    @property
    def block_bytes(self) -> int:
        """Nothing: pages of the file are the kernel's."""
        return 0

    def read(self, block: Block) -> CsrBlock:
        """Rows of one block, as views of the mapped file. Memory: none of ours."""
        import pyarrow as pa

        path = self._where.path(self.layout.file_name(block))
        with open_expected(path, self._files[block.index]):
            mapped = pa.memory_map(str(path))
        is_first = block.index not in self._checked
        if is_first:
            if crc32c_of(mapped.read_buffer()) != self._files[block.index].crc32c:
                raise corrupt(path, "differs from the manifest")
            mapped.seek(0)
        rows, offsets = self._parse(mapped, block, path)
        if is_first and not _fits(rows, np.array_equal(rows.indptr, offsets), self.num_features):
            raise corrupt(path, "holds rows that no matrix of this shape has")
        self._checked.add(block.index)
        return rows

    def map_unchecked(self, block: Block) -> tuple[CsrBlock, NDArray[np.int64]]:
        """As ``read``, without a look at the rows; and the offsets of the values, to compare with those of columns."""
        path = self._where.path(self.layout.file_name(block))
        return self._parse(map_sparingly(path, self._files[block.index]), block, path)

    def _parse(self, mapped: Any, block: Block, path: Path) -> tuple[CsrBlock, NDArray[np.int64]]:
        import pyarrow as pa

        try:
            batch = pa.ipc.open_file(mapped).get_batch(0)
            indices, values = batch.column("index"), batch.column("value")
            rows = CsrBlock(as_numpy(indices.offsets), as_numpy(indices.values), as_numpy(values.values))
        except (pa.ArrowException, KeyError, IndexError, AttributeError) as error:
            raise corrupt(path, f"is no file of sparse rows: {error}") from error
        about = batch.schema.metadata or {}
        if about.get(b"version") != str(FORMAT_VERSION).encode():
            raise StoreVersionError(
                "features of another format version", where=path, expected=f"version {FORMAT_VERSION}"
            )
        if batch.num_rows != block.num_rows or about.get(b"block") != str(block.index).encode():
            raise corrupt(path, "holds another block")
        if rows.indices.dtype != np.uint32 or rows.values.dtype != np.float32 or rows.indptr.size != block.num_rows + 1:
            raise corrupt(path, "holds rows that no matrix of this shape has")
        return rows, as_numpy(values.offsets)

    read_csr = read

    def read_dense(self, block: Block, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Rows of one block with their zeros. Memory: ``rows_per_block * num_features * 4``, far more than the file."""
        return to_dense(self.read(block), self.num_features, out)

    def read_columns(self, block: Block, first: int, stop: int, out: NDArray[Any]) -> None:
        """Columns of a block's rows, into ``out``. Memory: none."""
        del stop  # ``out`` is as wide
        rows = self.read(block)
        csr_columns(rows.indptr, rows.indices, rows.values, first, out)

    def stream(self, *, read_ahead: int = 2, threads: int = 2) -> Iterator[tuple[Block, CsrBlock]]:
        """All blocks in order, the next few being checked and brought into the page cache meanwhile."""
        return stream_blocks(self._blocks, lambda block, _: self.read(block), ahead=read_ahead, threads=threads)

    def rows(self, ids: Any) -> CsrBlock:
        """Rows ``ids``, in that order, repeats allowed. Memory: the result + 32 bytes an id."""
        return self._gather(ids, lambda block, _: self.read(block))

    def rows_sparingly(self, ids: Any) -> CsrBlock:
        """As ``rows``, without the rest of their blocks, unless that is little.

        A block's crc32c can only be taken of all its bytes; so of the rows of a block of which few are wanted, only
        their offsets and columns are checked, as ``edges.some_rows`` does it.
        """
        found = self._gather(ids, self._read_some)
        if found.indices.size and found.indices.max() >= self.num_features:
            raise corrupt(self.directory, "has a column outside the matrix in a row that was asked for")
        return found

    def _read_some(self, block: Block, local: NDArray[np.int64]) -> CsrBlock:
        if local.size * WHOLE_FROM_SHARE >= block.num_rows:
            return self.read(block)
        rows, offsets = self.map_unchecked(block)
        bad = find_bad_offsets(rows.indptr, min(rows.indices.size, rows.values.size), local)
        ends = (rows.indptr[local] == offsets[local]) & (rows.indptr[local + 1] == offsets[local + 1])
        if bad >= 0 or not ends.all():
            raise corrupt(self.directory, f"makes no sense in the rows {block.start:,} to {block.stop - 1:,}")
        return rows

    def _gather(self, ids: Any, read: Callable[[Block, NDArray[np.int64]], CsrBlock]) -> CsrBlock:
        wanted = checked_ids(ids, self.num_rows)
        order = np.argsort(wanted, kind="stable")
        wanted = wanted[order]
        cuts = np.searchsorted(wanted, [block.start for block in self._blocks] + [self.num_rows])
        touched = [(block, slice(*cuts[block.index : block.index + 2])) for block in self._blocks]
        touched = [(block, here) for block, here in touched if here.stop > here.start]
        indptr = np.zeros(wanted.size + 1, np.int64)
        found = {block.index: read(block, wanted[here] - block.start) for block, here in touched}
        for block, here in touched:
            offsets, local = found[block.index].indptr, wanted[here] - block.start
            indptr[order[here] + 1] = offsets[local + 1] - offsets[local]
        np.cumsum(indptr, out=indptr)
        result = CsrBlock(indptr, np.empty(indptr[-1], np.uint32), np.empty(indptr[-1], np.float32))
        for block, here in touched:
            rows, local = found[block.index], wanted[here] - block.start
            gather_csr(
                rows.indptr, rows.indices, rows.values, local, order[here], indptr, result.indices, result.values
            )
        return result

    rows_csr = rows

    def rows_dense(self, ids: Any, *, threads: int = 2) -> NDArray[np.float32]:  # noqa: ARG002 - one thread maps and copies
        """Rows ``ids`` with their zeros. Memory: the result + what ``rows`` takes."""
        return to_dense(self.rows(ids), self.num_features)

    def count_values(self, ids: Any) -> int:
        """Values of the rows ``ids``, from the offsets alone. Memory: 24 bytes an id."""
        wanted = np.sort(checked_ids(ids, self.num_rows))
        cuts = np.searchsorted(wanted, [block.start for block in self._blocks] + [self.num_rows])
        total = 0
        for block in self._blocks:
            here = wanted[cuts[block.index] : cuts[block.index + 1]] - block.start
            if here.size:
                offsets = self.read(block).indptr
                total += int((offsets[here + 1] - offsets[here]).sum())
        return total
