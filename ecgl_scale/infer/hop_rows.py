"""Rows that a model is given, made of a graph's features: stacked hops, and their random features.

P^j x of every node lies in a mapped file for each j, made by ``k_hop_features``; x itself is read from the store, and
stays sparse into the products. Rows of the model's input are made when they are asked for, a few at a time, and are
never stored.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import atomic_file
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.hops import k_hop_features
from ecgl_scale.infer.matrix import make_matrix, map_matrix
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.infer.random_features import PRODUCT_ROWS, RandomFeatures
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.tasks.scaling import Scaling

LENGTH_ONE = Scaling("row_l2")
COPY_ROWS = 1 << 14

Ints = NDArray[np.int64]


class HopRows:
    """Rows of [x, P x, ..., P^k x], each part of length one, or their random features."""

    def __init__(
        self,
        made: ModelInput,
        features: FeatureReader,
        hops: Sequence[Matrix],
        mapping: RandomFeatures | None,
        nodes: Ints | None = None,
        listed: Path | None = None,
    ) -> None:
        """``hops`` are P x, P^2 x and so on; ``mapping`` is what ``draw_map`` gives, which many may share.

        With ``nodes``, rows are those of these nodes alone, and so are the hops; for other processes they are
        ``listed`` in a file.
        """
        self._made = made
        self._features = features
        self._hops = list(hops)
        self._mapping = mapping
        self._nodes = nodes
        self._listed = listed
        self.width = made.num_columns(features.width)

    def __len__(self) -> int:
        """Count the nodes."""
        return self._features.num_rows if self._nodes is None else self._nodes.size

    def __getitem__(self, local: Ints) -> Matrix:
        """Rows of some nodes; each product has the rows that stand beside each other here."""
        local = np.asarray(local)
        found = np.empty((local.size, self.width), np.float32)
        for start in range(0, local.size, PRODUCT_ROWS):
            here = local[start : start + PRODUCT_ROWS]
            self._fill(here, found[start : start + here.size])
        return found

    def _fill(self, local: Ints, out: Matrix) -> None:
        nodes = local if self._nodes is None else self._nodes[local]
        parts: list[Matrix | CsrBlock] = [self._own(nodes)]
        parts += [LENGTH_ONE.apply(np.asarray(hop[local])) for hop in self._hops]
        if self._mapping is not None:
            self._mapping.apply(parts, local.size, out)
            return
        out[:] = np.hstack([part if isinstance(part, np.ndarray) else self._dense(nodes) for part in parts])

    def _own(self, nodes: Ints) -> Matrix | CsrBlock:
        """The features themselves: sparse where they are, for a map that multiplies only what is there."""
        scaling, features = self._features.scaling, self._features.features
        if features.kind != "sparse" or (scaling is not None and not scaling.keeps_zeros) or self._mapping is None:
            return self._dense(nodes)
        rows = features.rows_csr(nodes)
        rows = LENGTH_ONE.apply_sparse(rows if scaling is None else scaling.apply_sparse(rows))
        return CsrBlock(rows.indptr, rows.indices, rows.values.astype(np.float32, copy=False))

    def _dense(self, nodes: Ints) -> Matrix:
        return LENGTH_ONE.apply(self._features.gather(nodes, None))

    # --- for other processes

    def describe(self) -> Json:
        """Say where everything is; the hops must be in files."""
        scaling = self._features.scaling
        paths: list[Json] = [str(hop.filename) for hop in self._hops if isinstance(hop, np.memmap)]
        return {
            "store": self._features.graph.address,
            "scaling": None if scaling is None else scaling.to_json(),
            "hops": paths,
            "nodes": self._list_nodes(),
            "input": [self._made.num_hops, self._made.width, self._made.seed],
        }

    def _list_nodes(self) -> Json:
        if self._nodes is None or self._listed is None:
            return None
        with atomic_file(self._listed, is_shared=True) as path, path.open("wb") as file:
            np.save(file, self._nodes, allow_pickle=False)
        return str(self._listed)

    @classmethod
    def open(cls, description: Json, resources: Resources) -> HopRows:
        """Open what another process has described."""
        scaling = None if description["scaling"] is None else Scaling.from_json(description["scaling"])
        features = FeatureReader(GraphStore.open(description["store"]), scaling)
        num_hops, width, seed = description["input"]
        made = ModelInput(num_hops, is_stacked=True, width=width, seed=seed)
        listed = description["nodes"]
        nodes = None if listed is None else np.load(listed, allow_pickle=False)
        num_rows = features.num_rows if nodes is None else nodes.size
        hops = [map_matrix(num_rows, features.width, Path(path)) for path in description["hops"]]
        return cls(made, features, hops, draw_map(made, features.width, resources), nodes)


def draw_map(made: ModelInput, num_features: int, resources: Resources) -> RandomFeatures | None:
    """The random numbers of an input that is mapped; they are the same for every graph with so many features."""
    if not made.width:
        return None
    return RandomFeatures(made.num_stacked(num_features), made.width, made.seed, threads=resources.threads)


def propagate_hops(
    graph: GraphStore,
    made: ModelInput,
    resources: Resources,
    *,
    norm: Norm,
    scaling: Scaling | None = None,
    own: Ints | None = None,
    directory: Path,
) -> list[Matrix]:
    """P^j x in mapped files, for j = 1 to k where hops are stacked, else for k alone; of the nodes ``own``, or of all.

    Killed, it goes on with what was done of the file under way.
    """
    found = []
    for hops in range(1 if made.is_stacked else made.num_hops, made.num_hops + 1):
        work = directory / f"work-{hops}"
        work.mkdir(parents=True, exist_ok=True)
        try:
            rows = k_hop_features(graph, hops, resources, norm=norm, scaling=scaling, work_directory=work)
        except BaseException:
            with suppress(OSError):
                work.rmdir()  # only where nothing is in it to go on with
            raise
        kept = make_matrix(graph.num_nodes if own is None else own.size, rows.shape[1], directory / f"hop-{hops}.rows")
        for start in range(0, len(kept), COPY_ROWS):  # in pieces, as a choice of rows is a copy
            stop = min(start + COPY_ROWS, len(kept))
            kept[start:stop] = rows[start:stop] if own is None else rows[own[start:stop]]
        del rows
        shutil.rmtree(work, ignore_errors=True)
        found.append(kept)
    return found
