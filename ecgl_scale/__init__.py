"""Continual graph learning on graphs that do not fit in memory.

Importing this package loads nothing heavy; names are resolved when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ecgl_scale._version import __version__

if TYPE_CHECKING:
    from ecgl_scale.session.ecgl_model import ECGL
    from ecgl_scale.store.graph import GraphStore
    from ecgl_scale.tasks.stream import TaskStream

__all__ = ["ECGL", "GraphStore", "TaskStream", "__version__"]

_HOMES = {
    "ECGL": "ecgl_scale.session.ecgl_model",
    "GraphStore": "ecgl_scale.store.graph",
    "TaskStream": "ecgl_scale.tasks.stream",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
