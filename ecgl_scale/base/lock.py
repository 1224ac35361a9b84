"""One writer at a time: a lock file that the kernel lets go of when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from ecgl_scale.errors import LockedError


def take_lock(lock_path: Path, *, target: object) -> int:
    """Lock ``lock_path`` for this process, or say who holds it; returns the descriptor that keeps it."""
    while True:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise LockedError(
                "another process is writing this target",
                where=f"{target} (held by {holder or 'unknown'})",
                fix="wait for it to end, or stop it",
            ) from error
        # The previous holder may have removed the name between our open and our lock: then lock the new file.
        try:
            current = lock_path.stat().st_ino
        except FileNotFoundError:
            current = -1
        if current == os.fstat(descriptor).st_ino:
            break
        os.close(descriptor)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
    return descriptor
