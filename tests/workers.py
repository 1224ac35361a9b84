"""What pytest's workers, several processes at once, must not do to each other."""

from __future__ import annotations

import fcntl
import os
from typing import Any


def share_cores() -> None:
    """As ``ecgl`` does: threads of torch's that wait for each other must not take the cores from others by spinning."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def share_compiled_code() -> None:
    """Let one worker at a time touch numba's index of what is compiled.

    A new file there gets the next free number by the index. Of two processes that read it before either has written
    it, one would leave its code under the other's number, to be run as something else by all processes to come.
    """
    from numba.core import caching

    for name in ("load", "save"):
        _take_turns(caching.IndexDataCacheFile, name)


def _take_turns(kind: Any, name: str) -> None:
    method = getattr(kind, name)

    def in_turn(cache: Any, *arguments: Any) -> Any:
        with open(f"{cache._index_path}.lock", "w") as lock:  # noqa: PTH123
            fcntl.flock(lock, fcntl.LOCK_EX)
            return method(cache, *arguments)

    setattr(kind, name, in_turn)
