"""Reading and writing past the page cache (O_DIRECT), where a file system can."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np

SECTOR_BYTES = 4096
"""O_DIRECT wants addresses, offsets and lengths in multiples of the device's block."""


def open_direct(path: Path, flags: int) -> int:
    """Open past the page cache where the file system can, else as usual."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644)


def write_all(descriptor: int, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """``os.write`` until all is written, leaving O_DIRECT where a file system takes the flag but not the write."""
    position = 0
    while position < data.size:
        try:
            position += os.write(descriptor, data[position:].data)
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)


def round_up(number: int, multiple: int) -> int:
    """The next multiple at or above ``number``."""
    return -(-number // multiple) * multiple
