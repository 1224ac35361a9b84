"""Where the edges of a graph come from: pieces that can be read apart, or one stream from the first to the last.

Edges that can be read apart are numbered, and a piece is a block of those numbers: rows of a file, draws of a
generator. Threads read pieces side by side. Where the source can also be described (a ``kind`` and some JSON), other
processes can read them too. What only this process has (arrays in memory) and what only comes in order (compressed
text) is read here, whoever does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import EcglError

if TYPE_CHECKING:
    from ecgl_scale.store.keys.read import StoreKeys

IntArray = NDArray[np.integer[Any]]

EDGE_SOURCES = {
    "files": "ecgl_scale.store.edge_source:JoinedEdges",
    "kronecker": "ecgl_scale.store.sources.kron:KronEdges",
    "block model": "ecgl_scale.store.sources.sbm_edges:SbmEdges",
    "npy": "ecgl_scale.store.sources.npy_edges:NpyEdges",
    "table": "ecgl_scale.store.sources.table_edges:TableEdges",
    "keyed table": "ecgl_scale.store.sources.keyed_edges:KeyedTableEdges",
    "store": "ecgl_scale.store.store_source:StoreEdges",
    "task part": "ecgl_scale.tasks.part_source:PartEdges",
    "live ends": "ecgl_scale.store.live_ends:LiveEnds",
}
"""Where each kind is that a worker can open from its description: names travel, never code."""


@dataclass(frozen=True)
class EdgeBlock:
    """Some edges ``src[i] -> dst[i]``, ids of any integer dtype, not yet checked."""

    src: IntArray
    dst: IntArray
    origin: str
    """File (and member) they came from, for messages."""
    first_row: int
    """Row of the first edge in ``origin``, for messages: its line in a text file (from 1), else its number (from 0)."""
    crcs: tuple[int, ...] = ()
    """Checksums of the bytes they were read from, for ``EdgeSource.check``."""


class EdgeSource(ABC):
    """The edges of a graph. A piece may be read twice, by several threads and in any order."""

    kind: ClassVar[str] = ""
    """As in ``EDGE_SOURCES``; without one, only this process can read the edges."""

    @property
    def names_keys(self) -> bool:
        """Whether nodes are named by keys, not by numbers."""
        return False

    @abstractmethod
    def cut(self, max_edges: int) -> list[Block] | None:
        """Pieces of at most ``max_edges`` edges, by their numbers; None where edges only come one after the other."""

    @abstractmethod
    def read(self, start: int, stop: int) -> EdgeBlock:
        """The edges of one piece."""

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order, at most ``max_edges`` at a time; another call starts anew."""
        for piece in self.cut(max_edges) or ():
            yield self.read(piece.start, piece.stop)

    def check(self, pieces: Sequence[tuple[Block, Sequence[int]]]) -> None:  # noqa: B027 - most files say nothing
        """Compare the ``crcs`` of all pieces, in their order, with what the file says of itself."""

    def with_keys(self, keys: StoreKeys) -> EdgeSource:  # noqa: ARG002 - most sources name nodes by their numbers
        """These edges where nodes that are named by keys are looked up in ``keys``."""
        return self

    def identity(self) -> Json | None:
        """What these edges follow from, so that a build of the same ones can go on; None where that cannot be told."""
        return None

    def describe(self, work: Path) -> Json:
        """What ``open`` needs; what is too large for JSON goes to a file in ``work``, which every worker sees."""
        raise EcglError(f"{type(self).__name__} cannot be sent to another process: {work}")

    @classmethod
    def open(cls, description: Json) -> EdgeSource:
        """Make the same source in another process."""
        raise EcglError(f"{cls.__name__} cannot be opened from {description!r:.100}")


@dataclass(frozen=True)
class StreamedEdges(EdgeSource):
    """Edges that only come one after the other."""

    blocks: Callable[[int], Iterator[EdgeBlock]]
    """``blocks(max_edges)`` yields all edges, at most that many at a time."""

    def cut(self, max_edges: int) -> None:  # noqa: ARG002
        """Nothing can be read before what comes earlier."""
        return

    def read(self, start: int, stop: int) -> EdgeBlock:
        """No piece can be read by itself."""
        raise EcglError(f"edges {start} to {stop} only come after those before them")

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        return self.blocks(max_edges)


@dataclass(frozen=True)
class JoinedEdges(EdgeSource):
    """The edges of several files, one file after the other."""

    kind = "files"
    parts: tuple[EdgeSource, ...]
    counts: tuple[int, ...]
    """Edges of each; estimates where a file cannot be cut."""

    def cut(self, max_edges: int) -> list[Block] | None:
        """The pieces of all files, unless one of them cannot be cut."""
        pieces: list[Block] = []
        for first, part in zip(self._starts(), self.parts, strict=True):
            found = part.cut(max_edges)
            if found is None:
                return None
            pieces += [Block(len(pieces) + piece.index, first + piece.start, first + piece.stop) for piece in found]
        return pieces

    def _starts(self) -> list[int]:
        return [0, *accumulate(self.counts[:-1])]

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Read from the one file that holds them."""
        starts = self._starts()
        index = bisect_right(starts, start) - 1
        return self.parts[index].read(start - starts[index], stop - starts[index])

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        for part in self.parts:
            yield from part.stream(max_edges)

    @property
    def names_keys(self) -> bool:
        """As its files do, which are all alike."""
        return any(part.names_keys for part in self.parts)

    def with_keys(self, keys: StoreKeys) -> JoinedEdges:
        """Every file with these keys."""
        return replace(self, parts=tuple(part.with_keys(keys) for part in self.parts))

    def identity(self) -> Json | None:
        """That of every file, if all have one."""
        found = [part.identity() for part in self.parts]
        return None if None in found else found

    def describe(self, work: Path) -> Json:
        """Describe every file."""
        return {"parts": [describe_edges(part, work) for part in self.parts], "counts": list(self.counts)}

    @classmethod
    def open(cls, description: Json) -> JoinedEdges:
        """Open every file again."""
        return cls(tuple(map(open_edges, description["parts"])), tuple(description["counts"]))


def file_identity(path: Path) -> Json:
    """Tells a file from others, and from what it was before somebody changed it."""
    about = path.stat()
    return [str(path.absolute()), about.st_size, about.st_mtime_ns]


def describe_edges(edges: EdgeSource, work: Path) -> Json:
    """Describe edges so that ``open_edges`` finds them in another process."""
    return {"kind": edges.kind, "of": edges.describe(work)}


def open_edges(description: Json) -> EdgeSource:
    """Open edges that another process has described."""
    module_name, _, class_name = EDGE_SOURCES[description["kind"]].partition(":")
    found: type[EdgeSource] = getattr(import_module(module_name), class_name)
    return found.open(description["of"])
