"""Inference of some nodes: only what is within as many hops as there are aggregations is read and computed.

The passes are those of a whole inference, over the neighbourhood of the nodes as a graph of its own, and so are the
kernels, the order of every sum and the place of every row in its product: with our own kernels the rows have the bits
of a whole inference over contiguous partitions; with torch and DGL they agree to float32 rounding.

Nodes are taken in batches whose neighbourhoods fit the budget. Where all batches together would gather as many rows as
``WHOLE_FROM_SHARE`` of the graph has, or where a single node's neighbourhood does not fit, nothing is won: the caller
is told to infer the whole graph, which works within any budget that holds a few columns of all nodes.
Memory: see ``some_sizes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import one_blas_thread
from ecgl_scale.graph.adjacency import Ints
from ecgl_scale.graph.neighbourhood import Neighbourhood, NeighbourhoodReader
from ecgl_scale.graph.partition import CHUNK_ROWS
from ecgl_scale.infer.backends.backend import Backend
from ecgl_scale.infer.backends.choose import choose_backend, make_backend
from ecgl_scale.infer.chunks import Target, cut_packed, pack_by_place
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.matrix import make_matrix
from ecgl_scale.infer.program import Program, padded
from ecgl_scale.infer.settings import InferSettings, Matrix
from ecgl_scale.infer.some_sizes import SomeSizes
from ecgl_scale.infer.source_block import SourceBlock

WHOLE_FROM_SHARE = 0.5
STAGE = "the inference of some nodes"


class NeighbourhoodTooLargeError(Exception):
    """The neighbourhood of the nodes does not fit, or is most of the graph: infer the whole graph instead."""


class NodeInference:
    """A program over the neighbourhoods of some nodes."""

    def __init__(
        self,
        program: Program,
        features: FeatureReader,
        settings: InferSettings,
        resources: Resources,
        *,
        whole_from_share: float = WHOLE_FROM_SHARE,
        besides_bytes: int = 0,
    ) -> None:
        """``besides_bytes`` of the budget are left for what its rows are used for."""
        self._program = program
        self._features = features
        self._resources = resources
        self._whole_from = whole_from_share * features.num_rows
        self.backend = choose_backend(settings)
        self._settings = settings
        self._reader = NeighbourhoodReader(features.graph, settings.effective_norm, threads=resources.threads)
        self._sizes = SomeSizes(
            program,
            self.backend,
            resources.threads,
            features.num_rows,
            features.graph.edges.id_dtype.itemsize,
            self._reader.reads_all_edges,
            features.graph.edges.reading_bytes(resources.threads),
        )
        self._room_bytes = max(resources.room_bytes - besides_bytes, 0)
        self._first: Neighbourhood | None = None
        self.num_batches = 0
        self.num_sources = 0
        """Nodes whose features were read, those of several batches as often."""

    @property
    def read_bytes(self) -> int:
        """Offsets and ids of edges, and rows of features, that were asked for."""
        return self._reader.stored.read_bytes + 4 * self._features.width * self.num_sources

    def plan(self, ids: Ints) -> StagePlan:
        """Find the largest batch of ``ids``, which ascend, that fits, and what it needs.

        Raises
        ------
        NeighbourhoodTooLargeError
            It pays, or it is the only way, to infer the whole graph.
        """
        count = max(ids.size, 1)
        while True:
            try:
                found = self._find(ids[:count], self._whole_from * count / max(ids.size, 1))
                break
            except _DoesNotFit as error:
                if count == 1:
                    raise NeighbourhoodTooLargeError from error
                count = -(-count // 2)
        self._first = found
        num_edges = found.rows.num_edges
        need = self._sizes.need_bytes(found.sizes, num_edges)
        blocks = -(-ids.size // count)
        return StagePlan("infer", need, self._sizes.formula(found.sizes, num_edges), blocks=blocks, setting="memory")

    def run(self, ids: Ints) -> Iterator[tuple[int, Matrix]]:
        """Position of its first node among ``ids`` and the rows of each batch, in order.

        Raises
        ------
        NeighbourhoodTooLargeError
            As ``plan``, of a batch that turns out larger than the first; what was yielded before it counts.
        """
        if self._first is None:
            self.plan(ids)
        backend = make_backend(self.backend, self._settings, self._resources.threads)
        start, found = 0, self._first
        self._first = None
        count = max(ids.size, 1) if found is None else max(found.sizes[0], 1)
        while start < ids.size:
            while found is None:
                try:
                    found = self._find(ids[start : start + count], self._sizes.num_nodes)
                except _DoesNotFit as error:
                    if count == 1:
                        raise NeighbourhoodTooLargeError from error
                    count = -(-count // 2)
            self.num_batches += 1
            self.num_sources += found.ids.size
            rows, num_asked = self._compute(found, backend), found.sizes[0]
            order = np.argsort(found.ids[:num_asked])
            found = None
            yield start, rows[order]
            start += num_asked

    def _find(self, ids: Ints, most_nodes: float) -> Neighbourhood:
        sizes, room = self._sizes, self._room_bytes

        def allow(num_nodes: int, num_edges: int) -> None:
            if sizes.fixed_bytes + sizes.found_bytes(num_nodes, num_edges) > room:
                raise _DoesNotFit
            if num_nodes > most_nodes:
                raise NeighbourhoodTooLargeError

        def arrange(level: Ints) -> Ints:
            return pack_by_place(level % CHUNK_ROWS)

        found = self._reader.find(ids, len(self._program.passes), arrange, allow)
        if sizes.need_bytes(found.sizes, found.rows.num_edges) > room:
            raise _DoesNotFit
        return found

    def _compute(self, around: Neighbourhood, backend: Backend) -> Matrix:
        """The rows of the nodes asked for, as they are numbered."""
        scales, passes = around.scales, self._program.passes
        with ExitStack() as stack:
            if backend.name == "numba":
                stack.enter_context(one_blas_thread())
            source = self._prepare(around)
            for number, layer_pass in enumerate(passes):
                num_rows, is_last = around.sizes[-2 - number], number == len(passes) - 1
                width = layer_pass.widths[-1]
                out = make_matrix(num_rows, width if is_last else padded(width))
                own_scale = None if is_last or scales.source is None else scales.source[:num_rows]
                block = SourceBlock(
                    num_rows,
                    0,
                    source,
                    0,
                    around.rows.part,
                    self._reader.adjacency.adds_self,
                    None if scales.row is None else scales.row[:num_rows],
                    scales.source,
                    tuple(cut_packed(around.ids[:num_rows] % CHUNK_ROWS)),
                )
                backend.begin(layer_pass, source.shape[1])
                backend.take_source(source)
                backend.run(block, Target(out, slice(0, num_rows), own_scale))
                backend.end()
                source = out
        return source

    def _prepare(self, around: Neighbourhood) -> Matrix:
        """What the first pass aggregates: features, or their product with the first weight."""
        before, scale = self._program.before, around.scales.source
        if before is None:
            rows = self._features.gather(around.ids, None, sparingly=True)
        else:
            order = np.argsort(around.ids)
            products = make_matrix(around.ids.size, padded(self._program.source_width))
            self._features.multiply_some(around.ids[order], before, products)
            rows = np.empty_like(products)
            rows[order] = products
        if scale is not None:
            rows *= scale[:, None]
        return rows


class _DoesNotFit(Exception):  # noqa: N818 - it never leaves this file
    """A batch is too large for the room there is."""
