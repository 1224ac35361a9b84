"""What a user asks to be forgotten, and which nodes and outputs of a model that is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ecgl_scale.base.objects.url import AnyPath, location_of
from ecgl_scale.errors import EcglError, UsageError
from ecgl_scale.session.basis import Basis
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.node_list import read_node_list
from ecgl_scale.tasks.forgotten import Forgotten


@dataclass(frozen=True)
class Asked:
    """Nodes, or a class."""

    nodes: Any = None
    """Row numbers, or a file that names nodes: see ``store/node_list``."""
    class_name: str | None = None
    """The name of a class, or its label id where the store has no names."""
    by_key: bool = False
    """Whether the file has keys."""
    store: Path | None = None
    """The model's store, where it is not where its config says: for keys."""

    def resolve(self, basis: Basis) -> tuple[Forgotten, dict[str, Any]]:
        """Nodes and head positions, and what may be said of them."""
        if (self.nodes is None) == (self.class_name is None):
            raise UsageError("nodes, or a class, can be forgotten", expected="either of them")
        if self.class_name is not None:
            place = self._class(basis, self.class_name)
            return Forgotten(positions=place), {"asked": "class", "class": self.class_name, "num_asked": None}
        nodes = self._nodes(basis)
        return Forgotten(nodes), {"asked": "nodes", "class": None, "num_asked": int(nodes.size)}

    @staticmethod
    def _class(basis: Basis, name: str) -> Any:
        """The head position of a class; none where the store has it, and the model has never learned it."""
        names, classes = basis.seal.class_names, basis.seal.classes
        known = {str(label) if names is None else names[label]: label for label in classes}
        if name not in known and (names is None or name not in names):
            listed = ", ".join(list(known)[:20]) + (", ..." if len(known) > 20 else "")
            raise UsageError(f"the model knows no class {name!r}", where=basis.directory, expected=f"one of {listed}")
        return np.array([classes.index(known[name])] if name in known else [], np.int64)

    def _nodes(self, basis: Basis) -> Any:
        if not isinstance(self.nodes, Path):
            return np.unique(checked_ids(self.nodes, basis.seal.num_nodes))
        return read_node_list(self.nodes, self._graph(basis), self.by_key)

    def location(self, basis: Basis) -> AnyPath:
        """Where the model's store is."""
        return location_of(basis.saved.config.store if self.store is None else self.store)

    def _graph(self, basis: Basis) -> Any:
        """The model's store. Row numbers can do without it: nodes that came later are then unknown."""
        location = self.location(basis)
        try:
            graph = GraphStore.open(location)
            basis.known_tasks(graph)
        except EcglError:
            if self.by_key or self.store is not None:
                raise
            return SimpleNamespace(num_nodes=basis.seal.num_nodes, keys=None, path=location)
        return graph
