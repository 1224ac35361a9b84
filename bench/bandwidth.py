"""What this machine can move at most: the limits that stages are compared with. All rates use every core.

memory      bytes a second that sums over arrays read, far larger than the caches
lines       bytes a second of single cache lines of 64 bytes, read at random places
page_cache  bytes a second of files that lie in the page cache, read into one buffer
disk        the same with the page cache dropped
write       bytes a second written to files, with fsync
product     floating point operations a second of a product of float32 matrices
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.harness import drop_page_cache

SIDE = 3072
LINE_FLOATS = 16
BUFFER_BYTES = 1 << 20
Rates = dict[str, float]


def measure(work: Path, num_bytes: int = 1 << 30, repeats: int = 5) -> Rates:
    """Medians of the rates, the kinds in turns."""
    cores = len(os.sched_getaffinity(0))
    share = num_bytes // cores
    numbers = [np.ones(share // 8) for _ in range(cores)]
    table = np.ones((num_bytes // 64, LINE_FLOATS), np.float32)
    random = np.random.default_rng(0)
    places = [random.integers(0, len(table), share // 64) for _ in range(cores)]
    targets = [np.empty((share // 64, LINE_FLOATS), np.float32) for _ in range(cores)]
    square = random.random((2, SIDE, SIDE), dtype=np.float32)
    paths = [work / f"bandwidth-{core}" for core in range(cores)]
    found: dict[str, list[float]] = {}
    try:
        with ThreadPoolExecutor(cores) as pool:

            def rate(amount: float, work_of_core: Callable[[int], object]) -> float:
                started = time.perf_counter()
                list(pool.map(work_of_core, range(cores)))
                return amount / (time.perf_counter() - started)

            for turn in range(repeats + 1):
                rates = {"write": rate(share * cores, lambda core: _write(paths[core], share))}
                can_drop = drop_page_cache()
                rates["disk"] = rate(share * cores, lambda core: _read(paths[core]))
                rates["page_cache"] = rate(share * cores, lambda core: _read(paths[core]))
                rates["memory"] = rate(share * cores, lambda core: numbers[core].sum())
                rates["lines"] = rate(
                    share * cores, lambda core: table.take(places[core], axis=0, out=targets[core], mode="clip")
                )
                rates["product"] = _product_rate(square)
                if not can_drop:
                    del rates["disk"]
                for name, value in rates.items():
                    if turn:  # the first touches the memory
                        found.setdefault(name, []).append(value)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    return {name: statistics.median(values) for name, values in found.items()}


def _product_rate(square: np.ndarray) -> float:
    started = time.perf_counter()
    np.matmul(square[0], square[1])
    return 2 * SIDE**3 / (time.perf_counter() - started)


def _write(path: Path, num_bytes: int) -> None:
    block = b"\x5a" * BUFFER_BYTES
    with path.open("wb") as file:
        for _ in range(max(num_bytes // BUFFER_BYTES, 1)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    buffer = bytearray(BUFFER_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
