"""What a child of the fork server would otherwise load for itself; importing this runs no kernel, starts no thread."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
with suppress(ImportError):
    import_module("pandas")  # pyarrow loads it, where there is one, with the first array that it looks at
