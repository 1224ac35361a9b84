"""Runs the steps of one inference on an executor; see ``steps`` for what they are and ``layout`` for what is held."""

from __future__ import annotations

from itertools import groupby

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.executor import Workers
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Work
from ecgl_scale.infer.backends.backend import Backend
from ecgl_scale.infer.job import Job
from ecgl_scale.infer.journal import Finished, StepJournal
from ecgl_scale.infer.matrices import Crcs, FileMatrices, HeldMatrices, Matrices
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.infer.works import Done, LayerWork, PrepareWork

STAGE = "infer"


class Execution:
    """One inference under way."""

    def __init__(self, job: Job, backend: Backend, journal: StepJournal, resources: Resources) -> None:
        self._job = job
        self._backend = backend
        self._journal = journal
        self._resources = resources
        self._matrices: Matrices = HeldMatrices(job) if resources.executor.shares_memory else FileMatrices(job)
        self._restored: dict[int, Crcs] = {}
        self._next_step = 0
        self._num_done = 0
        self.num_resumed = 0
        self.read_bytes = 0

    def resume(self, finished: Finished | None) -> None:
        """Take over what an earlier call has saved; begin anew where a matrix that is needed is damaged."""
        if finished is None or not self._restore(finished):
            self._journal.clear()
            self._matrices.forget(but=set())
            self._matrices.remove_files(but=set())

    def _restore(self, finished: Finished) -> bool:
        if not 0 <= finished.step < len(self._job.steps):
            return False
        found = {}
        for index in [*self._inputs_from(finished.step), finished.step]:
            found[index] = self._matrices.restore(index, finished.crcs.get(index, {}))
            if index != finished.step and len(found[index]) != len(self._job.blocks_of(index)):
                return False
        for index, crcs in found.items():
            self._journal.begin(index, crcs)
        self._restored, self._next_step = found, finished.step
        self._num_done = self.num_resumed = self._num_before(finished.step) + len(found[finished.step])
        return True

    def run(self) -> Matrix:
        """Do what is left; returns the last matrix."""
        steps, executor = self._job.steps, self._resources.executor
        self._resources.on_event(StageStarted(STAGE, self._num_before(len(steps)), "partitions"))
        left = range(self._next_step, len(steps))
        for is_prepared, indices in groupby(left, key=lambda index: steps[index].kind != "prepare"):
            work, resources = self._layers() if is_prepared else self._preparation()
            with executor.open(work, resources) as workers:
                for index in indices:
                    self._run_step(index, workers)
        result = self._matrices.result(len(steps) - 1)
        self._journal.clear()
        self._matrices.finish()
        return result

    def _preparation(self) -> tuple[Work[None, Done], Resources]:
        readers = self._resources.with_threads(self._job.layout.prepare_readers)
        return PrepareWork(self._job, self._matrices), readers

    def _layers(self) -> tuple[Work[None, Done], Resources]:
        work = LayerWork(self._job, self._matrices, self._backend, self._resources.threads)
        return work, self._resources

    def _run_step(self, index: int, workers: Workers[Done]) -> None:
        if index not in self._restored:
            self._matrices.begin(index)
            self._journal.begin(index, {})
        saved = self._restored.get(index, {})
        left = [block for block in self._job.blocks_of(index) if block.index not in saved]
        for block, record in workers.run(left, index):
            self.read_bytes += record.read_bytes
            self._journal.finish(block, self._job.layout, self._matrices)
            self._num_done += 1
            self._resources.on_event(BlockFinished(STAGE, self._num_done))
        needed = {index, *self._inputs_from(index + 1)}
        self._journal.drop(but=needed)
        self._matrices.forget(but=needed)

    def _num_before(self, index: int) -> int:
        return sum(len(self._job.blocks_of(number)) for number in range(index))

    def _inputs_from(self, index: int) -> list[int]:
        """Steps before ``index`` that it or a later one reads."""
        read = {source for step in self._job.steps[index:] for source in step.inputs}
        return sorted(source for source in read if 0 <= source < index)
