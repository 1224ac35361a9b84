"""How fast a disk is, past the page cache."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.base.durable import DurableWriter, aligned_bytes, open_direct
from ecgl_scale.units import MIB

BLOCK_BYTES = 8 * MIB


@dataclass(frozen=True)
class DiskSpeed:
    """How many bytes a second a disk writes and reads, front to back."""

    write: float
    read: float


def measure_disk(directory: Path, num_bytes: int) -> DiskSpeed:
    """Write a file of so many bytes in ``directory`` and read it; it is removed.  Memory: 8 MiB."""
    block = aligned_bytes(min(BLOCK_BYTES, num_bytes))
    block[:] = 1
    count = max(num_bytes // block.size, 1)
    with tempfile.TemporaryDirectory(prefix=".ecgl-speed-", dir=directory) as folder:
        path = Path(folder) / "speed"
        started = time.perf_counter()
        with DurableWriter(path) as sink:
            for _ in range(count):
                sink.write(block)
            sink.finish()
        written = time.perf_counter()
        descriptor = open_direct(path, os.O_RDONLY)
        try:
            while os.readv(descriptor, [block.data]):
                pass
        finally:
            os.close(descriptor)
        read = time.perf_counter()
    return DiskSpeed(count * block.size / (written - started), count * block.size / (read - written))
