"""In-edges of some nodes, read without the rest of their blocks.

A block's crc32c can only be taken of all its bytes, so it is not, unless an eighth of its rows is asked for: then the
block is read as everybody reads it. What is checked of a file of which less is wanted: its size, its numbers of rows
and edges, and of every row that is read its offsets, that its ids ascend, and that they are nodes. So damage may give
another neighbour where a flipped bit leaves a row in order (``ecgl verify`` would find it), but never an id that is no
node. Of a store at a URL blocks are fetched, and checked, as a whole.
Memory: what is asked for. Pages of the files are the page cache's, and only those with a wanted row are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import find_bad_row
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.errors import UsageError
from ecgl_scale.store.checked import checked_ids, corrupt
from ecgl_scale.store.edges.older import BlockRows
from ecgl_scale.store.edges.read import EdgeStore
from ecgl_scale.store.ragged import WHOLE_FROM_SHARE, Ragged

Ints = NDArray[np.int64]


class SomeRows:
    """Rows of an edge store by their ids; files stay mapped from the first row that is read of them on.

    Memory: what is asked for; of a store that has grown ``EdgeStore.reading_bytes`` at most.
    """

    def __init__(self, edges: EdgeStore, *, threads: int = 1) -> None:
        self._edges = edges
        self._threads = threads
        self._mapped: dict[int, BlockRows] = {}
        self.read_bytes = 0
        """Offsets and ids that were looked at."""

    def degrees(self, ids: Ints) -> Ints:
        """Stored edges into each of ``ids``, which ascend. Memory: 8 bytes an id, and as much again."""
        found = np.empty(ids.size, np.int64)

        def count(block: Block, here: slice) -> None:
            local = ids[here] - block.start
            found[here] = self._checked(block, local).counts(local)

        self._for_blocks(count, _ascending(ids, self._edges.num_nodes))
        self.read_bytes += 16 * ids.size
        return found

    def read(self, ids: Ints) -> Ragged:
        """The rows of ``ids``, which ascend, one after the other. Memory: the result, and a block's part of it."""
        offsets = np.zeros(ids.size + 1, np.int64)
        np.cumsum(self.degrees(ids), out=offsets[1:])
        values = np.empty(int(offsets[-1]), self._edges.id_dtype)

        def copy(block: Block, here: slice) -> None:
            local = ids[here] - block.start
            rows = self._checked(block, local).select(local)
            bad = find_bad_row(rows.offsets, rows.values, self._edges.num_nodes, True)
            if bad >= 0:
                raise self._corrupt(block, local[bad])
            values[offsets[here.start] : offsets[here.stop]] = rows.values

        self._for_blocks(copy, ids)
        self.read_bytes += values.nbytes
        return Ragged(offsets, values)

    def _for_blocks(self, work: Callable[[Block, slice], None], ids: Ints) -> None:
        blocks = self._edges.blocks()
        cuts: Sequence[int] = np.searchsorted(ids, [block.start for block in blocks] + [self._edges.num_nodes]).tolist()
        parts = [(block, slice(*cuts[block.index : block.index + 2])) for block in blocks]
        touched = [part for part in parts if part[1].stop > part[1].start]
        for _ in map_bounded(lambda part: work(*part), touched, threads=self._threads):
            pass

    def _checked(self, block: Block, rows: Ints) -> BlockRows:
        """The rows of a block, of which these may be asked for."""
        if block.index not in self._mapped:
            is_whole = rows.size * WHOLE_FROM_SHARE >= block.num_rows
            self._mapped[block.index] = self._edges.rows(block) if is_whole else self._edges.rows_unchecked(block)
        found = self._mapped[block.index]
        bad = found.find_bad_offsets(rows)
        if bad >= 0:
            raise self._corrupt(block, rows[bad])
        return found

    def _corrupt(self, block: Block, row: int) -> Exception:
        return corrupt(self._edges.path(block), f"makes no sense in the row of node {block.start + row:,}")


def rows_of(edges: EdgeStore, ids: Any) -> Ragged:
    """In-edges of ``ids``, which ascend, as rows; see ``SomeRows``."""
    return SomeRows(edges).read(_ascending(np.asarray(ids), edges.num_nodes))


def _ascending(ids: Any, num_nodes: int) -> Ints:
    found = checked_ids(ids, num_nodes)
    if (found[1:] <= found[:-1]).any():
        raise UsageError("the ids of rows to read do not ascend", expected="each id once, in ascending order")
    return found
