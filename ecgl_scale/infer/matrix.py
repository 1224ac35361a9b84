"""A row for every node between two passes: in memory, or mapped from a file in the work directory.

A mapped file's pages are the page cache's, not ours. Its space is taken from the disk before it is mapped, as a full
disk would otherwise show itself as a crash.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.infer.settings import Matrix


def make_matrix(num_rows: int, width: int, path: Path | None = None) -> Matrix:
    """Zeros: in memory, or in a new file at ``path``."""
    if path is None:
        return aligned_bytes(num_rows * width * 4).view(np.float32).reshape(num_rows, width)
    num_bytes = num_rows * width * 4
    with storage_errors(path, needed_bytes=num_bytes):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # somebody may still have the old one mapped
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
    return map_matrix(num_rows, width, path)


def map_matrix(num_rows: int, width: int, path: Path) -> Matrix:
    """An existing file; ``OSError`` or ``ValueError`` where it is missing or too short."""
    if path.stat().st_size != num_rows * width * 4:
        raise ValueError(f"{path} has another size")
    return np.memmap(path, np.float32, "r+", shape=(num_rows, width))
