"""New nodes whose keys the store has already: refused, or left out, with edges that lead to those that are there.

A node that is left out keeps what the store has of it. A label that contradicts it is refused; one where the store
has none is left out too, and a note says how many. Memory: 9 bytes a new node, where some are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow
from ecgl_scale.base.events import EventSink, Note
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.checked import expected_file
from ecgl_scale.store.compose import folders_with_rows
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, IntArray
from ecgl_scale.store.format import NODES_NAME
from ecgl_scale.store.keys.read import BATCH_ROWS, StoreKeys
from ecgl_scale.store.nodes import LABEL, NodeColumns
from ecgl_scale.store.remote import files_of
from ecgl_scale.store.source import AnyColumn, CsrBlock, DenseSource, GraphSource, NameSource, SparseSource
from ecgl_scale.store.view import StoreView

Ids = NDArray[np.int64]


def settle_existing(
    source: GraphSource, known: StoreKeys, before: StoreView, on_event: EventSink, *, skip: bool
) -> GraphSource:
    """The source without nodes that the store has; where that is not wanted, it may have none of them."""
    keys = source.keys
    if keys is None:
        return source
    rows = np.full(source.num_nodes, -1, np.int64)
    done = 0
    for block in keys.blocks(BATCH_ROWS):
        if block.null_count or done + len(block) > rows.size:
            return source  # writing them says what is wrong
        rows[done : done + len(block)] = known.rows_of(block)
        if not skip and rows[done : done + len(block)].max(initial=-1) >= 0:
            place = done + int(np.argmax(rows[done : done + len(block)] >= 0))
            raise InvalidInputError(
                f"the store has a node with the key {block[place - done].as_py()!r:.200}: row {rows[place]}",
                where=keys.where(place),
                expected="new nodes alone",
                fix="--on-existing skip leaves out nodes that are there",
            )
        done += len(block)
    if rows.max(initial=-1) < 0:
        return source
    _refuse_other_labels(source, rows, before, on_event)
    return _without(source, rows, before.manifest.num_nodes, on_event)


def _refuse_other_labels(source: GraphSource, rows: Ids, before: StoreView, on_event: EventSink) -> None:
    label = next((column for column in source.number_columns if column.name == LABEL), None)
    if label is None:
        return
    old = _labels_of(rows, before)
    first = num_new = 0
    for labels in label.blocks(BATCH_ROWS):
        own, there = (values[first : first + len(labels)] for values in (rows, old))
        is_other = (own >= 0) & (labels >= 0) & (there >= 0) & (labels != there)
        if is_other.any():
            place = int(np.argmax(is_other))
            names = source.class_names
            shown = [str(value) if names is None else names[value] for value in (labels[place], there[place])]
            raise InvalidInputError(
                f"the label of a node that is there changes: {shown[0]}, in the store it is {shown[1]}",
                where=f"{label.origin}, row {first + place} (row {own[place]} of the store)",
                expected="the label that the store has, or none",
            )
        num_new += int(np.count_nonzero((own >= 0) & (labels >= 0) & (there < 0)))
        first += len(labels)
    if num_new:
        nodes = "node that is" if num_new == 1 else "nodes that are"
        on_event(Note(f"{num_new:,} {nodes} there without a label came with one; the store keeps none", True))


def _labels_of(rows: Ids, before: StoreView) -> NDArray[np.int32]:
    """Labels that the store has of these rows; -1 where there is no row."""
    manifest, location = before.manifest, before.location
    names = [f"{folder}{NODES_NAME}" for folder in folders_with_rows(manifest)]
    written = {name: expected_file(manifest.files, name, location).written for name in names}
    labels = np.full(rows.size, -1, np.int32)
    for start, values in NodeColumns(files_of(location, manifest), written, manifest.columns).blocks(LABEL):
        is_here = (rows >= start) & (rows < start + len(values))
        labels[is_here] = values[rows[is_here] - start]
    return labels


def _without(source: GraphSource, rows: Ids, num_nodes: int, on_event: EventSink) -> GraphSource:
    is_new = rows < 0
    num_new = int(np.count_nonzero(is_new))
    on_event(Note(f"{rows.size - num_new:,} of {rows.size:,} nodes are in the store already, and are skipped"))
    places = np.where(is_new, num_nodes + np.cumsum(is_new) - 1, rows)
    features = source.features
    if isinstance(features, DenseSource):
        features = replace(features, blocks=partial(_kept_rows, features.blocks, is_new), rows=None)
    elif isinstance(features, SparseSource):
        features = replace(features, blocks=partial(_kept_csr, features.blocks, is_new))
    return replace(
        source,
        num_nodes=num_new,
        features=features if num_new else None,
        columns=tuple(_kept_column(column, is_new) for column in source.columns) if num_new else (),
        edges=RenumberedEdges(source.edges, places, num_nodes),
    )


def _kept_column(column: AnyColumn, is_new: NDArray[np.bool_]) -> AnyColumn:
    if isinstance(column, NameSource):
        return replace(column, blocks=partial(_kept_names, column.blocks, is_new))
    return replace(column, blocks=partial(_kept_rows, column.blocks, is_new))


def _kept_rows(blocks: Callable[[int], Iterator[Any]], is_new: NDArray[np.bool_], max_rows: int) -> Iterator[Any]:
    first = 0
    for block in blocks(max_rows):
        yield block[is_new[first : first + len(block)]]
        first += len(block)


def _kept_names(
    blocks: Callable[[int], Iterator[pa.Array]], is_new: NDArray[np.bool_], max_rows: int
) -> Iterator[pa.Array]:
    first = 0
    for block in blocks(max_rows):
        yield block.take(as_arrow(np.flatnonzero(is_new[first : first + len(block)])))
        first += len(block)


def _kept_csr(
    blocks: Callable[[int], Iterator[CsrBlock]], is_new: NDArray[np.bool_], max_rows: int
) -> Iterator[CsrBlock]:
    first = 0
    for block in blocks(max_rows):
        own = is_new[first : first + block.num_rows]
        counts = np.diff(block.indptr)
        is_kept = np.repeat(own, counts)
        offsets = np.concatenate([[0], np.cumsum(counts[own])]).astype(np.int64)
        yield CsrBlock(offsets, block.indices[is_kept], block.values[is_kept])
        first += block.num_rows


@dataclass(frozen=True, eq=False)
class RenumberedEdges(EdgeSource):
    """Edges whose new nodes have other numbers; nodes by key have theirs already. Only this process reads them."""

    inner: EdgeSource
    places: Ids
    """Where each of the new nodes is, by its number less ``first``."""
    first: int

    def with_keys(self, keys: StoreKeys) -> EdgeSource:
        """The edges with keys, which lead to nodes wherever they are."""
        inner = self.inner.with_keys(keys)
        return inner if self.inner.names_keys else replace(self, inner=inner)

    def cut(self, max_edges: int) -> list[Block] | None:
        """As the edges themselves are cut."""
        return self.inner.cut(max_edges)

    def read(self, start: int, stop: int) -> EdgeBlock:
        """The edges of one piece."""
        return self._renumbered(self.inner.read(start, stop))

    def stream(self, max_edges: int) -> Iterator[EdgeBlock]:
        """All edges in order."""
        return map(self._renumbered, self.inner.stream(max_edges))

    def check(self, pieces: Sequence[tuple[Block, Sequence[int]]]) -> None:
        """Compare the checksums of all pieces with those of their file."""
        self.inner.check(pieces)

    def _renumbered(self, block: EdgeBlock) -> EdgeBlock:
        return replace(block, src=self._ids(block, block.src), dst=self._ids(block, block.dst))

    def _ids(self, block: EdgeBlock, ids: IntArray) -> IntArray:
        stop = self.first + self.places.size
        is_outside = (ids < 0) | (ids >= stop)
        if is_outside.any():
            row = int(np.argmax(is_outside))
            raise InvalidInputError(
                f"node {ids[row]} of an edge does not exist",
                where=f"{block.origin}, row {block.first_row + row}",
                expected=f"ids from 0 to {stop - 1}",
            )
        moved = ids.astype(np.int64)
        is_new = moved >= self.first
        moved[is_new] = self.places[moved[is_new] - self.first]
        return moved
