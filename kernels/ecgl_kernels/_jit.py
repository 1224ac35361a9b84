"""The one place with numba's flags.

``nogil`` lets callers run kernels in threads; ``cache`` keeps the compiled code on disk, so that only the first
call of the first process pays for it; ``boundscheck`` stays off: callers pass arrays of the right size, tests check.
``error_model`` is numpy's: a test for zero at every division would keep loops from being vectorised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a serial kernel that keeps its Python signature for the type checker."""
    return cast("Callable[P, R]", numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small function that is always inlined into the kernels that call it."""
    return cast("Callable[P, R]", numba.njit(nogil=True, cache=True, error_model="numpy", inline="always")(function))
