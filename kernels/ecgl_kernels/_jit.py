"""The one place with numba's flags.

``nogil`` lets callers run kernels in threads; the compiled code is kept on disk (``_cache``), so that only the first
call of the first process pays for it; ``boundscheck`` stays off: callers pass arrays of the right size, tests check.
``error_model`` is numpy's: a test for zero at every division would keep loops from being vectorised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba

from ecgl_kernels._cache import kernel_cache

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a serial kernel that keeps its Python signature for the type checker."""
    return _compile(function)


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small function that is always inlined into the kernels that call it."""
    return _compile(function, inline="always")


def _compile(function: Callable[P, R], **flags: Any) -> Callable[P, R]:
    dispatcher = numba.njit(nogil=True, error_model="numpy", **flags)(function)
    dispatcher._cache = kernel_cache(function)  # as its ``enable_caching`` does, with our own kind of cache
    return cast("Callable[P, R]", dispatcher)
