"""What every case uses: a child process watched from outside, medians with their spread, and the JSON record.

A number without its record in ``bench/results`` is not quoted anywhere.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ecgl_scale.units import format_bytes

RESULTS_VARIABLE = "ECGL_BENCH_RESULTS"
RESULTS = Path(os.environ.get(RESULTS_VARIABLE, Path(__file__).parent / "results"))
DEFAULT_WORK = Path(__file__).parent / "work"
PACKAGES = ("ecgl-scale", "numpy", "numba", "pyarrow", "zarr", "scipy", "torch", "dgl")


@dataclass(frozen=True)
class Measured:
    """A finished child process."""

    seconds: float
    peak_anon_bytes: int
    """Highest RssAnon + RssShmem of the process, sampled every 5 ms from outside."""
    written_bytes: int
    """Bytes it had written to the disk's block layer (or handed to it) when last seen."""
    stdout: str
    cpu_seconds: float = 0.0
    """Of all its threads, in user and system: what other processes on the machine change least."""
    command: tuple[str, ...] = ()
    read_bytes: int = 0
    """Bytes it had read from the disk when last seen: not those that the page cache had."""


def run_measured(command: Sequence[str]) -> Measured:
    """Run a command to its end, watching its memory; a failure of it is ours too."""
    started = time.perf_counter()
    peak = written = read = 0
    cpu_before = _cpu_seconds_of_children()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    ) as child:
        while child.poll() is None:
            peak = max(peak, _anon_bytes(child.pid))
            written = max(written, _disk_bytes(child.pid, "write_bytes:"))
            read = max(read, _disk_bytes(child.pid, "read_bytes:"))
            time.sleep(0.005)
        seconds = time.perf_counter() - started
        output, errors = child.communicate()
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} exited with {child.returncode}:\n{errors}")
    cpu_seconds = _cpu_seconds_of_children() - cpu_before
    return Measured(seconds, peak, written, output, cpu_seconds, tuple(command), read)


def _environment() -> dict[str, str]:
    """Ours, where Python may keep compiled modules: an installed one has them, and without each start takes seconds."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "ecgl-bench-pycache"), **kept}


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ecgl(*arguments: str) -> list[str]:
    """The command line of ``ecgl`` in this environment."""
    return [str(Path(sys.executable).with_name("ecgl")), "--no-progress", *arguments]


def _anon_bytes(pid: int) -> int:
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


def _disk_bytes(pid: int, which: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(which)), 0)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and all values."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
        "all": list(values),
    }


def drop_page_cache() -> bool:
    """Write back and empty the page cache; False where we may not."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


def save(case: str, result: dict[str, Any]) -> Path:
    """Write the record of a case with the machine and versions it was measured on."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{case}.json"
    text = json.dumps({"case": case, "measured": _circumstances(), **result}, indent=1) + "\n"
    written = path.with_suffix(f".{os.getpid()}.tmp")
    written.write_text(text, encoding="utf-8")
    written.replace(path)  # whoever reads it now finds a whole record
    print(f"wrote {path}")
    return path


def _circumstances() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return {
        "command": _command(sys.orig_argv[1:]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or None,
        "cores": len(os.sched_getaffinity(0)),
        "memory": format_bytes(memory),
        "processor": processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "load_average": os.getloadavg(),
    }


def _command(arguments: Sequence[str]) -> str:
    """Without the places of this machine."""
    places = {"--work", "--data", "--old", "--new", "--page", "--before"}
    kept = [b for a, b in zip(["", *arguments], arguments, strict=False) if b not in places and a not in places]
    return " ".join(["python", *kept])


def processor() -> str:
    """What the machine calls its processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
