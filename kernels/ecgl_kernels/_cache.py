"""Compiled code on disk, for any number of processes that compile at the same time.

numba's own cache gives a file the next free number of its index. Of two processes that read an index before either has
written it, one leaves its code under the other's number, to be run as something else by every process to come; batch
jobs that start together on a fresh installation do that. Here a file has a number that nobody else draws: the worst
that can happen is that an entry of the index is lost and compiled once more.

An index is void as soon as any file of this package has changed, not only the kernel's own: helpers are inlined.

numba's own cache makes the compiler ready before it looks for code that is compiled already: it imports all that the
compiler knows of Python, numpy and BLAS (scipy.linalg too), which takes most of a second of every command. Here only
what compiled code calls is made ready. Whoever does compile makes the rest ready by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.runtime.nrt import rtsys


def kernel_cache(function: Callable[..., Any]) -> FunctionCache | NullCache:
    """The cache of the compiled code of ``function``; one that keeps nothing if no place numba knows can be written."""
    try:
        return _KernelCache(function)
    except RuntimeError:  # numba: "no locator available"
        return NullCache()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = (*self._impl.locator.get_source_stamp(), _package_stamp())
        self._cache_file = _KernelFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Find compiled code, as numba does, without a compiler that is ready: only numba's memory manager must be."""
        rtsys.initialize(target_context)
        code: list[Any] = []  # stays empty after an error on the way to the file, which counts as no code
        with self._guard_against_spurious_io_errors():
            code.append(self._load_overload(sig, target_context))
        return code[0] if code else None


class _KernelFiles(IndexDataCacheFile):  # type: ignore[misc]
    def _data_name(self, number: int) -> str:
        del number
        return str(super()._data_name(uuid.uuid4().int))


@cache
def _package_stamp() -> tuple[tuple[str, int, int], ...]:
    found = ((path.name, path.stat()) for path in sorted(Path(__file__).parent.glob("*.py")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in found)
