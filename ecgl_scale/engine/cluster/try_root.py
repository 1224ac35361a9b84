"""Whether this process and all workers see one directory, both ways, and what it can do on each machine."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.try_directory import DirectoryReport, try_directory
from ecgl_scale.errors import EcglError


@dataclass(frozen=True)
class RootReport:
    """What one worker can do with the directory."""

    worker: str
    host: str
    problem: str
    """Why it cannot be used from there; empty where it can."""
    report: DirectoryReport | None


def try_root_here(root: str, token: str, num_bytes: int) -> dict[str, Any]:
    """In a worker: read the driver's token, leave an answer for it, and try the directory; as JSON."""
    answer = f"{token}-{socket.gethostname()}-{os.getpid()}"
    found: dict[str, Any] = {"host": socket.gethostname(), "problem": "", "report": None, "answer": answer}
    path = Path(root)
    try:
        if (path / token).read_text(encoding="ascii") != token:
            return {**found, "problem": "sees an old file where a new one was written"}
        (path / answer).write_text(answer, encoding="ascii")
        report = try_directory(path, num_bytes)
    except (OSError, EcglError) as error:
        return {**found, "problem": str(error)}
    return {**found, "problem": missing_of(report), "report": asdict(report)}


def missing_of(report: DirectoryReport) -> str:
    """What is needed and cannot be done, as text; empty where all can."""
    return f"no {' and no '.join(report.missing)}" if report.missing else ""


def try_root(
    root: Path, run_on_all: Callable[[Callable[..., Any], tuple[Any, ...]], Mapping[str, Any]], num_bytes: int
) -> list[RootReport]:
    """Try the directory on all workers; ``run_on_all`` calls a function there and gives answers by worker's name."""
    root = root.absolute()
    token = f".ecgl-{uuid.uuid4().hex}.token"
    with storage_errors(root):
        (root / token).write_text(token, encoding="ascii")
    try:
        found = run_on_all(try_root_here, (str(root), token, num_bytes))
        answered = {path.name for path in root.glob(f"{token}-*")}
    finally:
        for path in root.glob(f"{token}*"):
            path.unlink(missing_ok=True)
    reports = []
    for worker, said in sorted(found.items()):
        problem = said["problem"] or ("" if said["answer"] in answered else "what it writes is not seen here")
        report = None if said["report"] is None else DirectoryReport(**said["report"])
        reports.append(RootReport(worker, said["host"], problem, report))
    return reports
