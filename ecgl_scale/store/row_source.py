"""Dense rows of which any can be read by themselves, also by another process: a file of them, draws, rows of a store.

As with edges, what only comes in order (compressed arrays) or only this process has (arrays in memory) has no such
source, and is streamed by the process that builds the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from ecgl_scale.engine.work import Json

ROW_SOURCES = {
    "npy": "ecgl_scale.store.sources.node_files:NpyRows",
    "gaussian": "ecgl_scale.store.sources.kron:GaussianRows",
    "store": "ecgl_scale.store.store_source:StoreRows",
    "task part": "ecgl_scale.tasks.part_source:PartRows",
    "scaled": "ecgl_scale.tasks.subset:ScaledRows",
}
"""Where each kind is that a worker can open from its description: names travel, never code."""


class RowSource(ABC):
    """Rows by their numbers; several threads may read at once."""

    kind: ClassVar[str]
    """As in ``ROW_SOURCES``."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``start`` up to ``stop``."""

    @abstractmethod
    def identity(self) -> Json:
        """What these rows follow from, so that a build of the same ones can go on."""

    @abstractmethod
    def describe(self, work: Path) -> Json:
        """What ``open`` needs; what is too large for JSON goes to a file in ``work``, which every worker sees."""

    @classmethod
    @abstractmethod
    def open(cls, description: Json) -> RowSource:
        """Make the same source in another process."""


def describe_rows(rows: RowSource, work: Path) -> Json:
    """Describe rows so that ``open_rows`` finds them in another process."""
    return {"kind": rows.kind, "of": rows.describe(work)}


def open_rows(description: Json) -> RowSource:
    """Open rows that another process has described."""
    module_name, _, class_name = ROW_SOURCES[description["kind"]].partition(":")
    found: type[RowSource] = getattr(import_module(module_name), class_name)
    return found.open(description["of"])
