"""Runs the steps of one inference; see ``steps`` for what they are and ``layout`` for what is in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.threads import map_bounded, one_blas_thread
from ecgl_scale.graph.adjacency import Adjacency, Scale, Scales
from ecgl_scale.infer.block import Halos, Worker, held_block
from ecgl_scale.infer.dense import BufferPool, cut_chunks, places_of, write_rows
from ecgl_scale.infer.features import FeatureRows
from ecgl_scale.infer.journal import Finished, InferJournal
from ecgl_scale.infer.layout import Layout
from ecgl_scale.infer.matrix import make_matrix, map_matrix
from ecgl_scale.infer.partition import Partition
from ecgl_scale.infer.program import Program
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.infer.steps import FEATURES, Step, list_steps

STAGE = "infer"
Finish = Callable[[Partition], None]


class Execution:
    """One inference under way."""

    def __init__(
        self,
        edges: Adjacency,
        scales: Scales,
        program: Program,
        features: FeatureRows,
        layout: Layout,
        partitions: list[Partition],
        *,
        worker: Worker,
        journal: InferJournal,
        threads: int,
    ) -> None:
        self._edges = edges
        self._scales = scales
        self._program = program
        self._features = features
        self._layout = layout
        self._partitions = partitions
        self._worker = worker
        self._journal = journal
        self._threads = threads
        self._steps = list_steps(program, layout)
        self._blocks = [Partition(block.index, block.start, block.stop) for block in features.features.blocks()]
        self._halos = Halos(edges, scales) if layout.halo else None
        self._matrices: dict[int, Matrix] = {}
        self._next_step = 0
        self._saved: dict[int, int] = {}
        self.resumed = 0
        self.read_bytes = 0

    def resume(self, finished: Finished) -> bool:
        """Take over what an earlier call has saved; False where a matrix it needs is damaged."""
        if not 0 <= finished.step < len(self._steps):
            return False
        wanted = [*self._inputs_from(finished.step), finished.step]
        restored: dict[int, tuple[Matrix, dict[int, int]]] = {}
        for index in wanted:
            try:
                matrix = self._make(index, exists=True)
            except (OSError, ValueError):
                return False
            crcs = finished.crcs.get(index, {})
            whole = self._journal.restore(index, matrix, self._partitions_of(index), crcs)
            if index != finished.step and len(whole) != len(self._partitions_of(index)):
                return False
            restored[index] = matrix, whole
        for index, (matrix, whole) in restored.items():
            self._matrices[index] = matrix
            self._journal.begin(index, matrix, self._partitions_of(index), whole)
        self._next_step, self._saved = finished.step, restored[finished.step][1]
        self.resumed = self._num_before(finished.step) + len(self._saved)
        return True

    def run(self, on_event: EventSink) -> Matrix:
        """Do what is left; returns the last matrix."""
        done = self.resumed
        on_event(StageStarted(STAGE, self._num_before(len(self._steps)), "partitions"))

        def finish(partition: Partition) -> None:
            nonlocal done
            self._journal.finish(partition, self._layout)
            done += 1
            on_event(BlockFinished(STAGE, done))

        for index in range(self._next_step, len(self._steps)):
            if index not in self._matrices:
                self._matrices[index] = self._make(index)
                self._journal.begin(index, self._matrices[index], self._partitions_of(index), {})
            left = [one for one in self._partitions_of(index) if one.index not in self._saved]
            self._saved = {}
            self._run_step(self._steps[index], self._matrices[index], left, finish)
            needed = {index, *self._inputs_from(index + 1)}
            for old in set(self._matrices) - needed:
                self._journal.drop(old)
                del self._matrices[old]
        last = len(self._steps) - 1
        self._journal.clear(keep_step=last if self._steps[last].writes_file else -1)
        return self._matrices[last]

    def _make(self, index: int, *, exists: bool = False) -> Matrix:
        step, path = self._steps[index], self._journal.path_of(index)
        if step.writes_file and exists:
            return map_matrix(self._edges.num_nodes, step.width, path)
        return make_matrix(self._edges.num_nodes, step.width, path if step.writes_file else None)

    def _partitions_of(self, index: int) -> list[Partition]:
        return self._blocks if self._steps[index].kind == "prepare" else self._partitions

    def _num_before(self, index: int) -> int:
        return sum(len(self._partitions_of(number)) for number in range(index))

    def _inputs_from(self, index: int) -> list[int]:
        """Steps before ``index`` that it or a later one reads."""
        read = {source for step in self._steps[index:] for source in step.inputs}
        return sorted(source for source in read if 0 <= source < index)

    def _run_step(self, step: Step, out: Matrix, left: list[Partition], finish: Finish) -> None:
        if not left:
            return
        with ExitStack() as stack:
            if step.kind in ("prepare", "dense") or self._worker.name == "numba":
                stack.enter_context(one_blas_thread())
            if step.kind == "prepare":
                self._prepare(out, left, finish)
            elif step.kind == "dense":
                self._multiply(step, out, left, finish)
            else:
                self._aggregate(step, out, left, finish)

    def _next_scale(self, step: Step) -> Scale:
        return self._scales.source if step.is_scaled else None

    def _prepare(self, out: Matrix, left: list[Partition], finish: Finish) -> None:
        before = self._program.before

        def multiply(partition: Partition) -> Partition:
            block = Block(partition.index, partition.first, partition.stop)
            if before is not None:
                self._features.multiply(block, before, self._scales.source, out[block.start : block.stop])
            return partition

        for partition in map_bounded(multiply, left, threads=self._layout.prepare_readers):
            finish(partition)
        self.read_bytes += self._features.read_bytes

    def _aggregate(self, step: Step, out: Matrix, left: list[Partition], finish: Finish) -> None:
        one, worker = self._program.passes[step.number], self._worker
        source = make_matrix(0, self._source_width(step)) if self._halos is not None else self._load(step)
        if step.kind == "fused":
            worker.begin(one, source.shape[1])
        worker.take_source(source)
        for partition in left:
            if self._halos is None:
                block = held_block(self._edges, self._scales, partition, source)
            else:
                block = self._halos.block(partition, partial(self._gather, step))
                worker.take_source(block.source)
            if step.kind == "fused":
                worker.run(block, self._next_scale(step), out)
            else:
                worker.aggregate(block, out[partition.first : partition.stop])
            self.read_bytes += self._edge_bytes(partition)
            finish(partition)
        worker.end()

    def _edge_bytes(self, partition: Partition) -> int:
        itemsize = self._edges.id_dtype.itemsize
        if partition.ids is None:
            num_edges = self._edges.edges_before(partition.stop) - self._edges.edges_before(partition.first)
        else:
            num_edges = self._edges.edges_before(self._edges.num_nodes) // len(self._partitions)
        return num_edges * itemsize + 8 * partition.num_rows

    def _source_width(self, step: Step) -> int:
        source = step.inputs[0]
        return self._features.width if source == FEATURES else self._matrices[source].shape[1]

    def _load(self, step: Step) -> Matrix:
        """The columns to aggregate, of all nodes, in memory."""
        num_nodes, source = self._edges.num_nodes, step.inputs[0]
        if source == FEATURES:
            held, readers = make_matrix(num_nodes, step.stop - step.first), self._layout.passes[step.number].readers
            self._features.fill(step.first, step.stop, self._scales.source, held, threads=readers)
            self.read_bytes += self._features.read_bytes
            return held
        matrix = self._matrices[source]
        is_whole = step.kind == "fused"
        if is_whole and not isinstance(matrix, np.memmap):
            return matrix
        columns = slice(None) if is_whole else slice(step.first, step.stop)
        held = make_matrix(num_nodes, matrix.shape[1] if is_whole else step.stop - step.first)
        held[:] = matrix[:, columns]
        self.read_bytes += matrix.nbytes
        return held

    def _gather(self, step: Step, ids: NDArray[np.int64]) -> Matrix:
        source = step.inputs[0]
        if source == FEATURES:
            rows = self._features.gather(ids, self._scales.source)
        else:
            rows = np.ascontiguousarray(self._matrices[source][ids])
        self.read_bytes += rows.nbytes
        return rows

    def _multiply(self, step: Step, out: Matrix, left: list[Partition], finish: Finish) -> None:
        """The dense work on slices that were aggregated before."""
        one = self._program.passes[step.number]
        slices = [self._matrices[index] for index in step.inputs]
        pool = BufferPool(one, one.width, self._threads)

        def multiply(partition: Partition, chunk: tuple[int, int]) -> None:
            start, stop = chunk
            rows, places = slice(partition.first + start, partition.first + stop), places_of(partition, start, stop)
            with pool.buffers() as buffers:
                column = 0
                for part in slices:
                    buffers.first[places, column : column + part.shape[1]] = part[rows]
                    column += part.shape[1]
                sums = None
                if one.needs_sums:
                    block = held_block(self._edges, self._scales, partition, out)
                    sums = block.row_sums(block.cut(start, stop), start, stop)
                write_rows(partition, start, stop, buffers.finish(places, sums), self._next_scale(step), out)

        for partition in left:
            for _ in map_bounded(partial(multiply, partition), cut_chunks(partition), threads=self._threads):
                pass
            self.read_bytes += partition.num_rows * one.width * 4
            finish(partition)
