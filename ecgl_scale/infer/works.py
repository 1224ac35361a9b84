"""What inference does to a block of rows, as works for any executor; ``given`` is the number of a step.

    infer.prepare   features times the first weight, a stored block of them at a time, blocks in threads
    infer.layers    aggregation and dense work, a partition at a time, chunks of it in threads

A worker holds what a step reads of all nodes (see ``layout``) from its first block to the first block of the next step.
Where workers share no memory each also holds the rows of the block it writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import map_bounded, one_blas_thread
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.infer.backends.backend import Backend
from ecgl_scale.infer.backends.choose import make_backend
from ecgl_scale.infer.chunks import BufferPool, Target, cut_chunks, places_of
from ecgl_scale.infer.job import Job
from ecgl_scale.infer.matrices import FileMatrices, Matrices
from ecgl_scale.infer.matrix import make_matrix
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.infer.source_block import Halos, held_block
from ecgl_scale.infer.steps import FEATURES, Step


@dataclass(frozen=True)
class Done:
    """A block's rows are in their place."""

    read_bytes: int


class PrepareWork(Work[None, Done]):
    """Features times the first weight, and the scale for the aggregation that follows."""

    name: ClassVar[str] = "infer.prepare"
    record: ClassVar[type[Any]] = Done

    def __init__(self, job: Job, matrices: Matrices) -> None:
        self._job = job
        self._matrices = matrices
        # For as long as the work is open: threads that set it and set it back would do so under each other's feet.
        self._limits = ExitStack()
        self._limits.enter_context(one_blas_thread())

    def describe(self) -> Json:
        """The job, which is all that another process needs."""
        return self._job.describe()

    @classmethod
    def open(cls, description: Json, resources: Resources) -> PrepareWork:
        """Rows of other processes are in files."""
        del resources
        job = Job.open(description)
        return cls(job, FileMatrices(job))

    def run(self, block: Block, given: Json, scratch: None) -> Done:
        """Read and multiply a stored block."""
        del scratch
        job, before = self._job, self._job.program.before
        with self._matrices.target(given, block) as (matrix, where):
            if before is not None:
                job.features.multiply(block, before, job.scales.source, matrix[where])
        total, num_rows = job.features.read_bytes, job.features.num_rows
        return Done(total * block.stop // num_rows - total * block.start // num_rows)

    def close(self) -> None:
        """BLAS may use its threads again."""
        self._limits.close()


class LayerWork(Work[None, Done]):
    """Aggregates the rows of a partition and does the dense work on them."""

    name: ClassVar[str] = "infer.layers"
    record: ClassVar[type[Any]] = Done
    uses_all_threads: ClassVar[bool] = True

    def __init__(self, job: Job, matrices: Matrices, backend: Backend, threads: int) -> None:
        self._job = job
        self._matrices = matrices
        self._backend = backend
        self._threads = threads
        self._current = -1
        self._source = make_matrix(0, 0)
        self._pool: BufferPool | None = None
        self._halos: Halos | None = None
        self._read_bytes = 0

    def describe(self) -> Json:
        """The job, which is all that another process needs."""
        return self._job.describe()

    @classmethod
    def open(cls, description: Json, resources: Resources) -> LayerWork:
        """The backend is the one that the driver chose."""
        job = Job.open(description)
        backend = make_backend(job.layout.backend, job.settings, resources.threads)
        return cls(job, FileMatrices(job), backend, resources.threads)

    def run(self, block: Block, given: Json, scratch: None) -> Done:
        """Do a step's work on a partition."""
        del scratch
        step, self._read_bytes = self._job.steps[given], 0
        with ExitStack() as stack:
            if step.kind == "dense" or self._backend.name == "numba":
                stack.enter_context(one_blas_thread())
            if given != self._current:
                self._begin(given)
            matrix, where = stack.enter_context(self._matrices.target(given, block))
            scale = self._job.scales.source if step.is_scaled else None
            own = None if scale is None else scale[self._job.partitions.where(block)]
            target = Target(matrix, where, own)
            if step.kind == "dense":
                self._multiply(step, block, target)
            else:
                self._aggregate(step, block, target)
        return Done(self._read_bytes)

    def _begin(self, index: int) -> None:
        """Let go of what the step before held, and load what this one reads of all nodes."""
        step = self._job.steps[index]
        self.close()
        if step.kind != "dense":
            if self._job.layout.halo:
                self._halos = self._halos or Halos(self._job.adjacency, self._job.scales, self._job.partitions)
            else:
                self._source = self._load(step)
            if step.kind == "fused":
                self._backend.begin(self._job.program.passes[step.number], self._source_width(step))
            self._backend.take_source(self._source)
        self._current = index

    def close(self) -> None:
        """Let go of what a step holds."""
        self._current = -1
        self._source, self._pool = make_matrix(0, 0), None
        self._backend.end()

    def _source_width(self, step: Step) -> int:
        """Columns of what is aggregated."""
        if not self._job.layout.halo:
            return int(self._source.shape[1])
        source = step.inputs[0]
        return self._job.features.width if source == FEATURES else self._job.steps[source].width

    def _load(self, step: Step) -> Matrix:
        """The columns to aggregate, of all nodes, in memory."""
        job, source = self._job, step.inputs[0]
        if source == FEATURES:
            held = make_matrix(job.adjacency.num_nodes, step.stop - step.first)
            readers = job.layout.passes[step.number].readers
            job.features.fill(step.first, step.stop, job.scales.source, held, threads=readers)
            self._read_bytes += job.features.read_bytes
            return held
        columns = slice(None) if step.kind == "fused" else slice(step.first, step.stop)
        held = self._matrices.whole(source, columns)
        if step.kind != "fused" or job.steps[source].writes_file:
            self._read_bytes += 4 * job.adjacency.num_nodes * job.steps[source].width
        return held

    def _aggregate(self, step: Step, block: Block, target: Target) -> None:
        job = self._job
        if self._halos is None:
            rows = held_block(job.adjacency, job.scales, block, self._source)
        else:
            rows = self._halos.block(block, partial(self._gather, step))
            self._backend.take_source(rows.source)
        if step.kind == "fused":
            self._backend.run(rows, target)
        else:
            self._backend.aggregate(rows, target.rows)
        self._read_bytes += self._edge_bytes(block)

    def _gather(self, step: Step, ids: NDArray[np.int64]) -> Matrix:
        source = step.inputs[0]
        if source == FEATURES:
            rows = self._job.features.gather(ids, self._job.scales.source)
        else:
            rows = self._matrices.gather(source, ids)
        self._read_bytes += rows.nbytes
        return rows

    def _edge_bytes(self, block: Block) -> int:
        adjacency, partitions = self._job.adjacency, self._job.partitions
        if partitions.order is None:
            num_edges = adjacency.edges_before(block.stop) - adjacency.edges_before(block.start)
        else:
            num_edges = adjacency.num_edges // len(partitions.blocks)
        return num_edges * adjacency.id_dtype.itemsize + 8 * block.num_rows

    def _multiply(self, step: Step, block: Block, target: Target) -> None:
        """The dense work on slices that were aggregated before."""
        job, layer_pass = self._job, self._job.program.passes[step.number]
        pool = self._pool = self._pool or BufferPool(layer_pass, layer_pass.width, self._threads)
        slices = [self._matrices.rows(index, block) for index in step.inputs]
        rows = held_block(job.adjacency, job.scales, block, self._source)

        def multiply(chunk: tuple[int, int]) -> None:
            start, stop = chunk
            places = places_of(block.start, start, stop)
            with pool.buffers() as buffers:
                column = 0
                for part in slices:
                    buffers.first[places, column : column + part.shape[1]] = part[start:stop]
                    column += part.shape[1]
                sums = rows.row_sums(rows.cut(start, stop), start, stop) if layer_pass.needs_sums else None
                target.write(start, stop, buffers.finish(places, sums))

        for _ in map_bounded(multiply, cut_chunks(block.start, block.num_rows), threads=self._threads):
            pass
        self._read_bytes += block.num_rows * layer_pass.width * 4
