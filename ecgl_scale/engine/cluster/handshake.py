"""What is compared before anything is written: driver and workers run the same code and see the same files.

A worker of another version would compute other bits without a word, and one that does not see the shared directory
would fail in the middle. Kernels give the same bits on every x86-64; products of matrices by BLAS and torch do so only
on like processors, so there a difference is a warning.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine.cluster.source_code import source_digest
from ecgl_scale.engine.cluster.unit_runner import worker_resources
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.units import format_bytes

PACKAGES = ("numpy", "numba", "torch", "pyarrow", "zarr", "distributed")
VECTOR_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512vl", "avx512_bf16", "amx_tile")


@dataclass(frozen=True)
class WorkerFacts:
    """What one process says of itself."""

    name: str
    host: str
    pid: int
    threads: int
    memory_bytes: int
    memory_origin: str
    code: dict[str, str]
    """What must be the same everywhere."""
    processor: str
    """What should be the same for products of matrices to have the same bits."""
    unseen: tuple[str, ...] = ()
    """Files that it was asked for and does not see as the driver does."""


def describe_process(name: str, files: Mapping[str, int]) -> dict[str, Any]:
    """This process, and which of ``files`` (path and size) it does not see."""
    resources = worker_resources()
    return WorkerFacts(
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        threads=resources.threads,
        memory_bytes=resources.budget.total_bytes,
        memory_origin=resources.budget.origin,
        code=_code(),
        processor=_processor(),
        unseen=tuple(path for path, num_bytes in files.items() if not _has_size(Path(path), num_bytes)),
    ).__dict__


def _has_size(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False


def _code() -> dict[str, str]:
    versions = {name: _version(name) for name in PACKAGES}
    return {"ecgl_scale": source_digest(), "python": platform.python_version(), **versions}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return platform.machine()
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    chosen = [
        f"{name}={os.environ[name]}" for name in ("OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY") if name in os.environ
    ]
    return " ".join([platform.machine(), *(flag for flag in VECTOR_FLAGS if flag in flags), *chosen])


def share_memory(found: Sequence[WorkerFacts]) -> list[WorkerFacts]:
    """Workers of one machine that were given no size share what it allows."""
    shared: list[WorkerFacts] = []
    for facts in found:
        if facts.memory_origin == "--memory":
            shared.append(facts)
            continue
        beside = sum(other.host == facts.host and other.memory_origin != "--memory" for other in found)
        origin = facts.memory_origin if beside == 1 else f"a share of one in {beside} of {facts.memory_origin}"
        changed = {**facts.__dict__, "memory_bytes": facts.memory_bytes // beside, "memory_origin": origin}
        shared.append(WorkerFacts(**changed))
    return shared


def check_workers(driver: WorkerFacts, workers: Sequence[WorkerFacts]) -> str | None:
    """Refuse workers that would give other results, or none; returns a warning where last bits may differ."""
    for worker in workers:
        for name, here in driver.code.items():
            if worker.code[name] != here:
                raise UsageError(
                    f"worker {worker.name} has another {name}: {worker.code[name]}",
                    where=f"host {worker.host}, process {worker.pid}",
                    expected=f"{here}, as in this process",
                    fix="start workers from the environment that runs this command",
                )
        if worker.unseen:
            raise InvalidInputError(
                f"worker {worker.name} does not see {worker.unseen[0]}",
                where=f"host {worker.host}, process {worker.pid}",
                expected="one file system, at the same path, for this command and all of its workers",
                fix="put the store and the output on a shared file system (NFS, Lustre, BeeGFS, CephFS)",
            )
    other = next((worker for worker in workers if worker.processor != driver.processor), None)
    if other is None:
        return None
    return (
        f"worker {other.name} has another processor ({other.processor}; here {driver.processor}): attribute vectors "
        "and dense layers may differ in their last bits; OPENBLAS_CORETYPE and ATEN_CPU_CAPABILITY make them alike"
    )


def smallest_budget(own: MemoryBudget, workers: Sequence[WorkerFacts], option: str = "--worker-memory") -> MemoryBudget:
    """What every process of the job has: blocks are cut for it, whoever does them; ``option`` gives workers more."""
    least = min(workers, key=lambda worker: worker.memory_bytes)
    if least.memory_bytes >= own.total_bytes:
        return own
    return MemoryBudget(least.memory_bytes, f"worker {least.name} on {least.host} ({least.memory_origin})", option)


def require_memory(workers: Sequence[WorkerFacts], needed_bytes: int, *, stage: str) -> None:
    """Refuse a job, before it starts, whose blocks do not fit one of the workers."""
    for worker in workers:
        if worker.memory_bytes < needed_bytes:
            raise DoesNotFitError(
                f"{stage} needs {format_bytes(needed_bytes)} of each worker, "
                f"worker {worker.name} has {format_bytes(worker.memory_bytes)}",
                where=f"host {worker.host}, process {worker.pid}; limit from {worker.memory_origin}",
                fix="give workers more memory (--worker-memory, `ecgl worker --memory`), or leave this one out",
            )
