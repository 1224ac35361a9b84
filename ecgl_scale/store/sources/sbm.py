"""Block-model graphs: classes, homophily, skewed degrees, class-dependent features, arrival times.

Every edge, row and label is a function of its number (see ecgl_kernels.blockmodel), so blocks are the same in any
size, order and thread. Edges are distinct and without loops, exactly ``num_edges`` of them; if ``symmetrise`` is asked
of the builder no edge is drawn from both ends, so that it stores exactly twice as many.
Memory: vectors of a few numbers a class, the class means, and one block at a time. Nothing is node-sized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels import blockmodel as kernels
from ecgl_kernels.random import gaussian_rows, permutation_key, substream, unpermute_block
from ecgl_scale.errors import UsageError
from ecgl_scale.store.source import (
    AnyArray,
    ColumnSource,
    CsrBlock,
    DenseSource,
    GraphSource,
    SparseSource,
)
from ecgl_scale.store.sources.kron import require_range
from ecgl_scale.store.sources.sbm_edges import BlockModel, EdgeSettings, SbmEdges

ARRIVAL_STREAM, NOISE_STREAM, MEAN_STREAM, WORD_STREAM = range(19, 23)
UPPER_QUARTILE = 0.6745
"""A quarter of the features tell a class apart: those whose second normal draw lies above this."""


@dataclass(frozen=True)
class SbmPreset:
    """A published graph's counts."""

    num_nodes: int
    num_edges: int
    """Edges to generate: each undirected one once."""
    num_features: int
    num_classes: int
    homophily: float
    """Share of edges within a class; of the real graph, rounded."""
    symmetrise: bool
    """Whether the published graph stores both directions."""
    sparse: bool = False
    labelled: float = 1.0
    """Share of the nodes that have a label."""

    @property
    def stored_edges(self) -> int:
        """Directed edges of the published graph, and of the store."""
        return self.num_edges * (2 if self.symmetrise else 1)


LIKE: Mapping[str, SbmPreset] = MappingProxyType(
    {
        "corafull": SbmPreset(19_793, 63_421, 8_710, 70, 0.57, symmetrise=True, sparse=True),
        "arxiv": SbmPreset(169_343, 1_166_243, 128, 40, 0.65, symmetrise=False),
        "reddit": SbmPreset(232_965, 57_307_946, 602, 41, 0.76, symmetrise=True),
        "products": SbmPreset(2_449_029, 61_859_140, 100, 47, 0.81, symmetrise=True),
        # 1,546,782 papers have a label; homophily as of arxiv, since between most papers nobody knows
        "papers100m": SbmPreset(111_059_956, 1_615_685_872, 128, 172, 0.65, symmetrise=False, labelled=0.01393),
    }
)


def like_source(name: str, seed: int = 0, *, share: float = 1.0, labelled: float | None = None) -> GraphSource:
    """Describe a block-model graph with the node, edge, feature and class counts of a published one.

    Parameters
    ----------
    share
        Of its nodes and edges; features and classes are as many.
    labelled
        Share of the nodes that have a label; as published without.

    Raises
    ------
    UsageError
        There is no such preset.
    """
    if name not in LIKE:
        raise UsageError(f"there is no preset {name!r}", expected=" or ".join(LIKE))
    if not 0.0 < share <= 1.0:
        raise UsageError(f"the share of {name} is {share}", expected="above 0, up to 1")
    preset = LIKE[name]
    return sbm_source(
        SbmSettings(
            num_nodes=round(share * preset.num_nodes),
            num_classes=preset.num_classes,
            num_features=preset.num_features,
            num_edges=round(share * preset.num_edges),
            labelled=preset.labelled if labelled is None else labelled,
            homophily=preset.homophily,
            symmetrise=preset.symmetrise,
            sparse=preset.sparse,
            seed=seed,
            name=f"like-{name}" if share == 1.0 else f"like-{name}-{share:g}",
        )
    )


@dataclass(frozen=True, kw_only=True)
class SbmSettings:
    """What a degree-corrected block-model graph is like."""

    num_nodes: int
    num_classes: int
    num_features: int
    """0 for none."""
    average_degree: float = 16.0
    """Edges a node in the store, both directions counted if ``symmetrise``; ``num_edges`` (each once) overrides it."""
    homophily: float = 0.8
    """Share of the edges that stay in their class."""
    periods: int = 10
    signal: float = 4.0
    """Dense: distance of two class means, in standard deviations of the noise. Sparse: a share
    ``signal / (signal + 4)`` of a node's words comes from its class's topic."""
    seed: int = 0
    sparse: bool = False
    words_per_node: int = 60
    symmetrise: bool = True
    """The builder will add the other direction, so generate each pair from one end only."""
    num_edges: int | None = None
    labelled: float = 1.0
    """Share of the nodes of every class that have a label, at least one of each; features are by class all the same."""
    name: str = "sbm"

    def __post_init__(self) -> None:
        require_range("number of nodes", self.num_nodes, 2, 1 << 40)
        require_range("number of classes", self.num_classes, 1, min(self.num_nodes, 1 << 20))
        require_range("number of features", self.num_features, 0, 1 << 24)
        require_range("number of periods", self.periods, 1, 1 << 20)
        require_range("seed", self.seed, 0, (1 << 63) - 1)
        if not 0.0 <= self.homophily <= 1.0:
            raise UsageError(f"the homophily is {self.homophily}", expected="0 to 1")
        if not 0.0 < self.labelled <= 1.0:
            raise UsageError(f"the share of labelled nodes is {self.labelled}", expected="above 0, up to 1")
        if not 0.0 <= self.signal <= 1e3:
            raise UsageError(f"the signal is {self.signal}", expected="0 to 1000")
        if self.num_edges is None and not 0.0 < self.average_degree <= self.num_nodes:
            expected = f"above 0, up to {self.num_nodes} nodes"
            raise UsageError(f"the average degree is {self.average_degree}", expected=expected)
        if self.sparse and self.num_features:
            require_range("number of words a node", self.words_per_node, 1, min(self.num_features // 3, 1 << 16))

    @property
    def edges(self) -> EdgeSettings:
        """What the edges follow from."""
        num_edges = self.num_edges
        if num_edges is None:
            num_edges = round(self.num_nodes * self.average_degree / (2 if self.symmetrise else 1))
        counts = (self.num_nodes, self.num_classes, num_edges)
        return EdgeSettings(*counts, self.homophily, self.symmetrise, self.seed)


def sbm_source(settings: SbmSettings) -> GraphSource:
    """Describe a degree-corrected block-model graph.

    Raises
    ------
    UsageError
        There are not that many distinct edges.
    """
    name, edges = settings.name, SbmEdges(settings.name, settings.edges)
    graph = edges.graph
    features: DenseSource | SparseSource | None = None
    if settings.num_features:
        features = _words(graph, settings) if settings.sparse else _dense(graph, settings)
    arrivals = partial(_arrivals, graph, settings.periods, settings.seed)
    return GraphSource(
        name=name,
        num_nodes=settings.num_nodes,
        num_edges_hint=graph.num_edges,
        edges=edges,
        features=features,
        columns=(
            ColumnSource("label", np.dtype(np.int32), name, partial(_known_labels, graph, settings.labelled)),
            ColumnSource("arrival", np.dtype(np.int32), name, arrivals),
        ),
        num_classes=settings.num_classes,
        provenance={
            "generator": "degree-corrected block model",
            "num_nodes": settings.num_nodes,
            "num_edges": graph.num_edges,
            "num_classes": settings.num_classes,
            "num_features": settings.num_features,
            "homophily": settings.homophily,
            "periods": settings.periods,
            "signal": settings.signal,
            "sparse": settings.sparse,
            "seed": settings.seed,
            "symmetrise": settings.symmetrise,
            **({} if settings.labelled == 1.0 else {"labelled": settings.labelled}),
        },
    )


def _labels(graph: BlockModel, max_rows: int) -> Iterator[NDArray[np.int32]]:
    for first in range(0, graph.num_nodes, max_rows):
        labels = np.empty(min(max_rows, graph.num_nodes - first), np.int32)
        kernels.node_classes(first, graph.class_nodes, graph.key, labels)
        yield labels


def _known_labels(graph: BlockModel, labelled: float, max_rows: int) -> Iterator[NDArray[np.int32]]:
    """Labels, and -1 for nodes without: of each class so many are left at even distances, from strong to weak nodes."""
    if labelled == 1.0:
        yield from _labels(graph, max_rows)
        return
    sizes = np.diff(graph.class_nodes)
    known = np.maximum(np.round(labelled * sizes).astype(np.int64), 1)
    first = 0
    for labels in _labels(graph, max_rows):
        ranks = np.empty(labels.size, np.int64)
        unpermute_block(first, graph.key, ranks)
        ranks -= graph.class_nodes[labels]
        of, among = known[labels], sizes[labels]
        labels[(ranks + 1) * of // among == ranks * of // among] = -1
        first += labels.size
        yield labels


def _arrivals(graph: BlockModel, periods: int, seed: int, max_rows: int) -> Iterator[AnyArray]:
    stream = substream(seed, ARRIVAL_STREAM)
    first = 0
    for labels in _labels(graph, max_rows):
        arrivals = np.empty_like(labels)
        kernels.node_arrivals(first, stream, periods, graph.num_classes, labels, arrivals)
        first += labels.size
        yield arrivals


def _dense(graph: BlockModel, settings: SbmSettings) -> DenseSource:
    num_features = settings.num_features
    means = _class_means(graph.num_classes, num_features, settings.signal, settings.seed)
    stream = substream(settings.seed, NOISE_STREAM)

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        first = 0
        for labels in _labels(graph, max_rows):
            rows: NDArray[np.float32] = np.empty((labels.size, num_features), np.float32)
            gaussian_rows(first, stream, rows)
            kernels.add_class_means(labels, means, rows)
            first += labels.size
            yield rows

    return DenseSource(num_features, np.dtype(np.float32), settings.name, blocks)


def _class_means(num_classes: int, num_features: int, signal: float, seed: int) -> NDArray[np.float32]:
    draws: NDArray[np.float32] = np.empty((2 * num_classes, num_features), np.float32)
    gaussian_rows(0, substream(seed, MEAN_STREAM), draws)
    means, chosen = draws[:num_classes], draws[num_classes:] > UPPER_QUARTILE
    density = 0.25
    if num_features < 16:  # too few to leave any out
        chosen, density = np.ones_like(chosen), 1.0
    scale = np.float32(signal / np.sqrt(2.0 * num_features * density))
    return np.where(chosen, means * scale, np.float32(0.0)).astype(np.float32)


def _words(graph: BlockModel, settings: SbmSettings) -> SparseSource:
    num_words, words_per_node = settings.num_features, settings.words_per_node
    stream = substream(settings.seed, WORD_STREAM)
    key = permutation_key(num_words, stream)
    share = settings.signal / (settings.signal + 4.0)
    topic_size = min(num_words, 4 * words_per_node)

    def blocks(max_rows: int) -> Iterator[CsrBlock]:
        first = 0
        for labels in _labels(graph, max_rows):
            indptr = np.empty(labels.size + 1, np.int64)
            kernels.word_offsets(first, graph.num_nodes, stream, words_per_node, indptr)
            indptr -= indptr[0].copy()
            indices = np.empty(indptr[-1], np.int32)
            kernels.bag_of_words(first, stream, share, topic_size, key, labels, indptr, indices)
            first += labels.size
            yield CsrBlock(indptr, indices, np.ones(indices.size, np.float32))

    return SparseSource(num_words, graph.num_nodes * words_per_node, settings.name, blocks)
