"""Sequential reading of dense features against plain reading of the same files, page cache warm and cold.

``python -m bench.feature_read [--bytes 2GiB] [--work DIR] [--repeats 5]`` writes a store, reads it, keeps the record.
"Plain" is one thread with ``readinto`` into one reused page-aligned buffer, as large as a shard file or of 1 MiB. The
ratio wanted is against the first, which like ours leaves whole blocks in memory; the second stays in the processor's
cache. "stream" too uses its memory again from run to run; "stream_fresh" pays for fresh memory in each.
Streaming uses two threads, so a busy machine makes the warm ratio worse: the load is recorded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import DEFAULT_WORK, save
from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout, write_dense
from ecgl_scale.store.source import DenseSource
from ecgl_scale.units import MIB, parse_bytes

NUM_FEATURES = 128
WANTED_RATIO = 0.70
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def run(work: Path, size_bytes: int, *, repeats: int = 5, cold: bool = True) -> dict[str, Any]:
    """Write, read, compare; ``work`` must not exist and is removed again."""
    layout = DenseLayout.plan(max(size_bytes // (NUM_FEATURES * 4), 1), NUM_FEATURES, "float32")
    work.mkdir(parents=True)
    try:
        directory = work / "features.zarr"
        write_dense(_noise(1, 1), DenseLayout.plan(1, 1), work / "warm-up.zarr", on_rows=lambda _: None)
        before_bytes = own_memory_bytes()
        with PeakSampler() as sampler:
            started = time.perf_counter()
            written = write_dense(_noise(layout.num_rows), layout, directory, on_rows=lambda _: None)
            write_seconds = time.perf_counter() - started
        total_bytes = sum(file.size_bytes for file in written.values())
        features = DenseFeatures.open(directory, layout, written)
        shards = [directory / name for name in written if name != "zarr.json"]
        result: dict[str, Any] = {
            "bytes": total_bytes,
            "shards": len(shards),
            "write_gb_per_second": total_bytes / write_seconds / 1e9,
            "write_peak_bytes": sampler.peak_bytes - before_bytes,
            "block_bytes": layout.block_bytes,
        }
        large, small = aligned_bytes(layout.block_bytes + MIB), aligned_bytes(MIB)
        large[:], small[:] = 1, 1  # touched before the clock starts, as is the memory streamed into
        into = features.buffers()
        ways = {
            "stream": lambda: _stream(features, into),
            "stream_fresh": lambda: _stream(features, None),
            "plain": lambda: _plain(shards, large),
            "plain_1mib": lambda: _plain(shards, small),
        }
        result["warm"] = _compare(ways, total_bytes, repeats, cold=False)
        if cold and os.access(DROP_CACHES, os.W_OK):
            result["cold"] = _compare(ways, total_bytes, repeats, cold=True)
        else:
            result["cold"] = "skipped: " + ("dropping the page cache takes root" if cold else "not asked for")
        return result
    finally:
        shutil.rmtree(work)


def _noise(num_rows: int, num_features: int = NUM_FEATURES) -> DenseSource:
    def blocks(max_rows: int) -> Iterator[np.ndarray[Any, Any]]:
        one = np.random.default_rng(1).random((max_rows, num_features), dtype=np.float32)
        for start in range(0, num_rows, max_rows):
            yield one[: min(max_rows, num_rows - start)]

    return DenseSource(num_features, np.dtype(np.float32), "noise", blocks)


def _stream(features: DenseFeatures, into: list[np.ndarray[Any, Any]] | None) -> None:
    num_rows = sum(len(rows) for _, rows in features.stream(into=into))
    assert num_rows == features.num_rows


def _plain(shards: list[Path], buffer: np.ndarray[Any, Any]) -> None:
    for path in shards:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer.data):
                pass


def _compare(ways: dict[str, Callable[[], None]], total_bytes: int, repeats: int, *, cold: bool) -> dict[str, Any]:
    """Times of all ways, taken in turns so that a busy moment of the machine falls on all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(repeats):
        for name, way in ways.items():
            if cold:
                os.sync()
                DROP_CACHES.write_text("3\n", encoding="ascii")
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    result: dict[str, Any] = {
        name: {
            "gb_per_second": total_bytes / statistics.median(times) / 1e9,
            "median_seconds": statistics.median(times),
            "fastest_seconds": min(times),
            "slowest_seconds": max(times),
        }
        for name, times in seconds.items()
    }
    result["ratio"] = statistics.median(seconds["plain"]) / statistics.median(seconds["stream"])
    result["ratio_fresh"] = statistics.median(seconds["plain"]) / statistics.median(seconds["stream_fresh"])
    result["ratio_to_plain_1mib"] = statistics.median(seconds["plain_1mib"]) / statistics.median(seconds["stream"])
    result["holds"] = result["ratio"] >= WANTED_RATIO
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", default="2GiB")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    result = run(arguments.work / "feature_read", parse_bytes(arguments.bytes), repeats=arguments.repeats)
    for cache in ("warm", "cold"):
        if isinstance(result[cache], dict):
            print(f"{cache}: {result[cache]['ratio']:.2f} of a plain read")
    save("feature_read", result)


if __name__ == "__main__":
    main()
