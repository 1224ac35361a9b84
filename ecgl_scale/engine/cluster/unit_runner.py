"""What a worker does: open a work once, run units of its blocks in its own threads, and say what that took.

Nothing here knows who calls. A unit comes as JSON and leaves as JSON and bytes. One work is open at a time: the stages
of a job follow each other, and what a work holds in memory goes when the next is opened, or when its stage ends.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.base.memory import PeakSampler, give_back_freed
from ecgl_scale.engine.clock import disk_bytes
from ecgl_scale.engine.cluster.failure import pack_error_text
from ecgl_scale.engine.cluster.units import read_blocks
from ecgl_scale.engine.local import LocalWorkers
from ecgl_scale.engine.record import pack_record
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work, open_work

MEMORY_VARIABLE = "ECGL_WORKER_MEMORY"
THREADS_VARIABLE = "ECGL_WORKER_THREADS"


@dataclass(frozen=True)
class Job:
    """A work that is open in a stage of some driver: the same for all of its units."""

    name: str
    """It tells this opening of the work from all others."""
    work: str
    description: Json
    directory: str | None
    """Where files go that are needed while the job runs."""
    memory_bytes: int
    """What every worker may use: that of the smallest, so that blocks fit whoever does them."""

    def as_text(self) -> str:
        """The JSON that travels with every unit."""
        return json.dumps(self.__dict__)


def worker_resources() -> Resources:
    """What this worker may use: what it was started with, else what its machine allows."""
    threads = os.environ.get(THREADS_VARIABLE)
    return Resources.of(os.environ.get(MEMORY_VARIABLE), None if threads is None else int(threads))


class UnitRunner:
    """The open work of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._name = ""
        self._work: Work[Any, Any] | None = None
        self._workers: LocalWorkers[Any] | None = None

    def run(self, job: str, blocks: str, given: str) -> dict[str, Any]:
        """Records of the blocks as text and bytes, or what went wrong, and what it took."""
        with self._lock, PeakSampler(0.02) as sampler:
            started, (read_before, written_before) = time.perf_counter(), disk_bytes()
            try:
                packed = self._run(job, blocks, given)
            except Exception as error:
                packed = {"error": pack_error_text(error)}
            read, written = disk_bytes()
            took = {
                "seconds": time.perf_counter() - started,
                "read_bytes": read - read_before,
                "written_bytes": written - written_before,
                "peak_bytes": sampler.restart(),
            }
            return {**packed, "took": json.dumps(took)}

    def _run(self, job: str, blocks: str, given: str) -> dict[str, Any]:
        if self._text != job:
            self._close()
            self._open(job)
        assert self._work is not None and self._workers is not None  # noqa: S101, PT018 - opened above
        unit = read_blocks(blocks)
        self._work.expect(unit)
        records = [pack_record(record) for _, record in self._workers.run(unit, json.loads(given))]
        return {"texts": [record.text for record in records], "arrays": [record.arrays for record in records]}

    def _open(self, text: str) -> None:
        job = Job(**json.loads(text))
        resources = Resources.of(
            job.memory_bytes,
            worker_resources().threads,
            work=None if job.directory is None else Path(job.directory),
        )
        self._work = open_work(job.work, job.description, resources)
        self._workers = LocalWorkers(self._work, 1 if self._work.uses_all_threads else resources.threads)
        self._text, self._name = text, job.name

    def close(self, name: str) -> None:
        """The stage has ended: let go of its work, unless another was opened since."""
        with self._lock:
            if self._name == name:
                self._close()

    def _close(self) -> None:
        if self._workers is not None:
            self._workers.close()
        if self._work is not None:
            self._work.close()
        self._work, self._workers, self._text, self._name = None, None, "", ""
        give_back_freed()
