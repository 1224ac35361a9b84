"""Edges in .npy arrays of an .npz file: one of shape [2, E], in either order, or one of sources and one of targets.

Arrays that the zip keeps as they are (``numpy.savez``) are read in place, any edges by themselves. Their CRC-32, which
zipfile compares when it reads from start to end, is put together from those of the pieces. Deflated arrays only come
in order; then two readers go through ``edge_index`` side by side, the second from its middle.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, IntArray, StreamedEdges, file_identity
from ecgl_scale.store.sources.npy import NpzFile, StoredArray, reading

_CRC32 = 0xEDB88320
"""The polynomial of zip's checksum, lowest power in the highest bit."""
_ONE, _X = 1 << 31, 1 << 30


def npy_edges(file: NpzFile, sources: str, targets: str | None = None) -> EdgeSource:
    """The edges of an array [2, E], or of two arrays."""
    names = [sources] if targets is None else [sources, targets]
    origin = file.where(sources) if targets is None else f"{file.where(sources)} and {targets}"
    header = file.header(sources)
    num_edges = header.size // 2 if targets is None else header.size
    found = [file.stored(name) for name in names]
    arrays = tuple(array for array in found if array is not None)
    if len(arrays) < len(names):
        return StreamedEdges(partial(_stream, file, names, num_edges, origin))
    starts = [array.offset for array in arrays]
    if targets is None and not header.is_columns:
        starts.append(starts[0] + num_edges * header.dtype.itemsize)
    return NpyEdges(file.path, origin, num_edges, header.stored_dtype.str, tuple(starts), arrays, is_checked=True)


def _stream(file: NpzFile, names: list[str], num_edges: int, origin: str, max_edges: int) -> Iterator[EdgeBlock]:
    are_pairs = len(names) == 1 and file.header(names[0]).is_columns
    places = [(names[0], 0)] if are_pairs else [(names[0], 0), (names[-1], num_edges if len(names) == 1 else 0)]
    with ExitStack() as handles:
        cursors = [handles.enter_context(file.cursor(*place)) for place in places]
        for block in split_blocks(num_edges, max_edges):
            if are_pairs:
                src, dst = _part_pairs(cursors[0].take(2 * block.num_rows))
            else:
                src, dst = (cursor.take(block.num_rows) for cursor in cursors)
            yield EdgeBlock(src, dst, origin, block.start)


def _part_pairs(values: IntArray) -> tuple[IntArray, IntArray]:
    """Part sources and targets that lie side by side, as numpy saves ``pairs.T``."""
    pairs = values.reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


@dataclass(frozen=True)
class NpyEdges(EdgeSource):
    """Edges that lie in a file as they are."""

    kind = "npy"
    path: Path
    origin: str
    num_edges: int
    dtype: str
    starts: tuple[int, ...]
    """Where sources and targets begin in the file, in bytes; one number where they lie in pairs."""
    arrays: tuple[StoredArray, ...] = ()
    """The arrays that hold them, for ``check``."""
    is_checked: bool = False
    """Whether there is a checksum to compare with."""

    def cut(self, max_edges: int) -> list[Block]:
        """Any edges can be read by themselves."""
        return split_blocks(self.num_edges, max_edges)

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Read one or two stretches of the file."""
        width = 3 - len(self.starts)
        dtype = np.dtype(self.dtype)
        found, crcs = [], []
        for first_byte in self.starts:
            with reading(self.origin):
                offset = first_byte + start * width * dtype.itemsize
                values = np.fromfile(self.path, dtype, (stop - start) * width, offset=offset)
            if values.size != (stop - start) * width:
                raise InvalidInputError("the file shrank while we read it", where=self.origin)
            if self.is_checked:
                crcs.append(zlib.crc32(values.view(np.uint8).data))
            found.append(values.astype(dtype.newbyteorder("="), copy=False))
        src, dst = found if width == 1 else _part_pairs(found[0])
        return EdgeBlock(src, dst, self.origin, start, tuple(crcs))

    def check(self, pieces: Sequence[tuple[Block, Sequence[int]]]) -> None:
        """Compare the CRC-32 of every array with the zip's; a piece has one for each stretch."""
        if not self.is_checked:
            return
        item_bytes = np.dtype(self.dtype).itemsize * (3 - len(self.starts))
        stretches = [
            [(crcs[side], piece.num_rows * item_bytes) for piece, crcs in pieces] for side in range(len(self.starts))
        ]
        if len(self.arrays) == 1:
            stretches = [[part for stretch in stretches for part in stretch]]
        for array, parts in zip(self.arrays, stretches, strict=True):
            crc = array.header_crc32
            for part_crc, num_bytes in parts:
                crc = join_crc32(crc, part_crc, num_bytes)
            if crc != array.crc32:
                raise InvalidInputError(
                    "the file is damaged: the bytes of its edges do not have the checksum that the zip has for them",
                    where=self.origin,
                    fix="fetch or write it again",
                )

    def identity(self) -> Json:
        """The file, and where in it edges begin."""
        return {**self.describe(self.path), "file": file_identity(self.path)}

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Name the file, where in it edges begin, and their type."""
        places = {"num_edges": self.num_edges, "dtype": self.dtype, "starts": list(self.starts)}
        return {"path": str(self.path), "origin": self.origin, **places, "is_checked": self.is_checked}

    @classmethod
    def open(cls, description: Json) -> NpyEdges:
        """Find the edges again."""
        return cls(**description | {"path": Path(description["path"]), "starts": tuple(description["starts"])})


def join_crc32(first: int, second: int, second_bytes: int) -> int:
    """CRC-32 of two stretches one after the other: ``first * x^(8 second_bytes) + second``, modulo the polynomial."""
    power, square, exponent = _ONE, _X, 8 * second_bytes
    while exponent:
        if exponent & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        exponent >>= 1
    return _multiply(power, first) ^ second


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_CRC32 if b & 1 else 0)
    return product
