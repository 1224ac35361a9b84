"""Continual graph learning on graphs that do not fit in memory.

Importing this package loads nothing heavy; names are resolved when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ecgl_scale._version import __version__

if TYPE_CHECKING:
    from ecgl_scale.store.graph import GraphStore

__all__ = ["GraphStore", "__version__"]

_HOMES = {"GraphStore": "ecgl_scale.store.graph"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
