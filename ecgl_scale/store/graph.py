"""A graph on disk, open: the one name most users need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.objects.url import AnyPath, location_of
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.store.checked import expected_file
from ecgl_scale.store.compose import GenerationInfo, address_of, folders_with_rows, generation_infos, generations_of
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.edges.read import EdgeStore, TileStore
from ecgl_scale.store.features.files import AnyFeatures, open_features
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import NODES_NAME, Manifest
from ecgl_scale.store.keys.read import StoreKeys, open_keys
from ecgl_scale.store.nodes import NodeColumns
from ecgl_scale.store.publish import build_store_at
from ecgl_scale.store.remote import files_of
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.names import key_column
from ecgl_scale.store.verify import check_bytes, check_files
from ecgl_scale.store.view import read_view
from ecgl_scale.units import MIB

if TYPE_CHECKING:
    import dgl

READ_WHOLE_BELOW_BYTES = 64 * MIB
"""Up to this size ``open`` compares every byte, in milliseconds; above, each block is compared when first read."""


class BuildSettings(TypedDict, total=False):
    """How a graph in memory becomes a store."""

    options: BuildOptions | None
    memory: str | int | None
    overwrite: bool


class GraphStore:
    """An open store. ``edges``, ``tiles``, ``nodes`` and ``features`` read their files when asked, not before."""

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        self.path: AnyPath = files.location
        self.files = files
        self.manifest = manifest
        self.edges = EdgeStore(files, manifest)
        self.tiles = TileStore(files, manifest)
        self.dropped: Dropped | None = self.edges.dropped
        """Nodes that have a row and are no longer in the graph; None where there are none."""
        self.features: AnyFeatures | None = open_features(files, manifest, self.dropped)
        self.nodes: NodeColumns | None = None
        if manifest.columns:
            names = [f"{part}{NODES_NAME}" for part in folders_with_rows(manifest)]
            written = {name: expected_file(manifest.files, name, files.location).written for name in names}
            self.nodes = NodeColumns(files, written, manifest.columns, self.dropped)
        self.keys: StoreKeys | None = open_keys(files, manifest)

    @classmethod
    def open(cls, path: str | AnyPath, generation: int | None = None) -> GraphStore:
        """Open a store, or say which file makes it unusable.

        ``generation`` is that of a store that has grown, as is ``#generation=N`` at the end of the path; without, it
        is the newest. Files of a store at a URL are fetched when they are first read: see ``store/remote.py``.

        Raises
        ------
        IncompleteStoreError, CorruptStoreError, StoreVersionError
            A store is complete and as it was written, or it is refused.
        """
        view = read_view(path, generation)
        location, manifest = view.location, view.manifest
        check_files(location, manifest)
        if isinstance(location, Path) and manifest.total_bytes <= READ_WHOLE_BELOW_BYTES:
            check_bytes(location, manifest)
        return cls(files_of(location, manifest, view.hold), manifest)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Any,
        x: Any = None,
        y: Any = None,
        path: str | AnyPath = "graph.ecgl",
        *,
        num_nodes: int | None = None,
        columns: dict[str, Any] | None = None,
        **settings: Unpack[BuildSettings],
    ) -> GraphStore:
        """Build a store from arrays or tensors in memory: ``edge_index`` [2, E], ``x`` [N, K] (or sparse), ``y`` [N].

        All edges are kept as they are, duplicates and self loops too, unless ``settings`` has other ``options``.
        """
        source = array_source(edge_index, x=x, y=y, num_nodes=num_nodes, columns=columns)
        keep_all = BuildOptions(keep_duplicates=True, self_loops="keep")
        resources, overwrite = Resources.of(settings.get("memory")), settings.get("overwrite", False)
        location = location_of(path)
        build_store_at(source, location, resources, options=settings.get("options") or keep_all, overwrite=overwrite)
        return cls.open(location)

    @classmethod
    def from_dgl(cls, graph: dgl.DGLGraph, path: str | AnyPath, **settings: Unpack[BuildSettings]) -> GraphStore:
        """Build a store from a homogeneous DGL graph with its ``feat``, ``label`` and other node arrays."""
        from ecgl_scale.store.convert import arrays_of_dgl

        return cls._from_arrays(arrays_of_dgl(graph), path, settings)

    @classmethod
    def from_pyg(cls, data: Any, path: str | AnyPath, **settings: Unpack[BuildSettings]) -> GraphStore:
        """Build a store from a PyG ``Data`` (or anything with ``edge_index``, ``x``, ``y`` and masks)."""
        from ecgl_scale.store.convert import arrays_of_pyg

        return cls._from_arrays(arrays_of_pyg(data), path, settings)

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any], path: str | AnyPath, settings: BuildSettings) -> GraphStore:
        return cls.from_edge_index(
            arrays["edge_index"],
            arrays["x"],
            arrays["y"],
            path,
            num_nodes=arrays["num_nodes"],
            columns=arrays["columns"],
            **settings,
        )

    @property
    def generation(self) -> int:
        """The number of the generation that is open; 0 of a store that never grew."""
        return len(self.generations) - 1

    @cached_property
    def generations(self) -> tuple[GenerationInfo, ...]:
        """The generations up to the one that is open."""
        return generation_infos(self.manifest)

    @property
    def address(self) -> str:
        """What another process, or a later one, opens this very graph by: where it is, and its generation."""
        return address_of(self.path, self.manifest)

    def new_nodes(self, since_generation: int) -> tuple[int, int]:
        """First and end of the nodes that came after a generation."""
        if not 0 <= since_generation <= self.generation:
            raise UsageError(
                f"there is no generation {since_generation}", where=self.path, expected=f"0 to {self.generation}"
            )
        return self.generations[since_generation].num_nodes, self.num_nodes

    def append(
        self,
        edge_index: Any = None,
        x: Any = None,
        y: Any = None,
        *,
        num_nodes: int | None = None,
        columns: dict[str, Any] | None = None,
        keys: Sequence[Any] | None = None,
        memory: str | int | None = None,
    ) -> GraphStore:
        """Add new nodes, one a row of ``x``, ``y`` and ``columns``, and edges between any nodes; open what it became.

        Ids of ``edge_index`` are numbers of nodes of the whole graph: new nodes follow those there are. Edges are
        treated as those of the store were when it was built. This graph stays as it was when it was opened. Where
        nodes have keys, ``keys`` has one for each new node, texts or whole numbers as those of the store are.
        """
        from ecgl_scale.store.append import append_store

        if keys is not None and num_nodes is None:
            num_nodes = len(keys)
        source = array_source(edge_index, x=x, y=y, num_nodes=num_nodes, columns=columns, adds=True)
        if keys is not None:
            name = "key" if self.keys is None else self.keys.name
            source = replace(source, columns=(*source.columns, key_column(name, keys)), id_column=name)
        append_store(source, self.path, Resources.of(memory), generation=self.generation)
        return type(self).open(self.path)

    @cached_property
    def identity(self) -> str:
        """A name for what is in the store, wherever it is: journals, caches and workers tell stores apart by it.

        It is the sha256 of names, sizes and checksums of all files, and of what the manifest says of the edges.
        """
        files = {name: [record.size_bytes, record.crc32c] for name, record in sorted(self.manifest.files.items())}
        edges = self.manifest.edges
        facts = [files, self.num_nodes, edges.symmetrised, edges.keeps_duplicates, edges.self_loops]
        facts += [] if self.class_names is None else [self.class_names]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @cached_property
    def short_identity(self) -> str:
        """Eight digits for people, as ``results.json`` has them."""
        crcs = [f"{name}:{record.crc32c}" for name, record in sorted(self.manifest.files.items())]
        return f"{crc32c_of(' '.join(crcs).encode()):08x}"

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.manifest.num_nodes

    def has_dropped_since(self, generation: int) -> bool:
        """Whether nodes were dropped after a generation."""
        appended = generations_of(self.manifest)[1]
        return any(later.dropped is not None for later in appended if later.number > generation)

    @property
    def num_dropped(self) -> int:
        """Number of nodes that have a row and are no longer in the graph."""
        return 0 if self.dropped is None else self.dropped.ids.size

    @property
    def num_edges(self) -> int:
        """Number of directed edges, as stored."""
        return self.manifest.edges.num_edges

    @property
    def num_features(self) -> int:
        """Columns of the feature matrix; 0 without features."""
        return 0 if self.manifest.features is None else self.manifest.features.num_features

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None without labels."""
        return self.manifest.num_classes

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by their numbers; None where they are the numbers 0, 1, 2, ... themselves."""
        return None if self.manifest.class_names is None else tuple(self.manifest.class_names)

    def class_name(self, label: int) -> str:
        """What users call the class of a label."""
        return str(label) if self.manifest.class_names is None else self.manifest.class_names[label]

    @property
    def has_sparse_features(self) -> bool:
        """Whether there are features, stored without their zeros."""
        return self.features is not None and self.features.is_sparse

    def require_features(self) -> AnyFeatures:
        """The features, or an error that says there are none."""
        if self.features is None:
            raise UsageError("the store has no features", where=self.path, fix="ingest it again with its features")
        return self.features

    def column(self, name: str) -> NDArray[Any]:
        """A node column, whole: ``label``, ``split``, ``year``, any other. Memory: the column."""
        if self.nodes is None:
            raise UsageError(
                f"the store has no node column {name!r}", where=self.path, expected="a store with node columns"
            )
        return self.nodes.column(name)

    def to_edge_index(self) -> NDArray[np.int64]:
        """All edges as [2, E] int64, sorted by destination and then source. Memory: 16 bytes an edge."""
        edge_index = np.empty((2, self.num_edges), np.int64)
        position = 0
        for block, rows in self.edges.stream_parts():
            stop = position + rows.values.size
            edge_index[0, position:stop] = rows.values
            edge_index[1, position:stop] = np.repeat(np.arange(block.start, block.stop), np.diff(rows.offsets))
            position = stop
        return edge_index

    def to_dgl(self) -> dgl.DGLGraph:
        """The whole graph as a DGL graph, with ``feat`` and the node columns. Memory: the graph, several times."""
        from ecgl_scale.store.convert import to_dgl

        return to_dgl(self)

    def __repr__(self) -> str:
        counts = f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, num_features={self.num_features}"
        return f"GraphStore({str(self.path)!r}, {counts})"
