"""Which nodes a graph network sees differently since a generation of a store: those whose predictions may have changed.

Let R be the nodes that new edges go into, D those whose scale as a source has changed, and X the new nodes. What a pass
sends changes at D and wherever its input did, what it receives changes at R and wherever something sent has changed:

    sent(0) = X + D      received(h) = X + R + sent(h) + out-neighbours of sent(h)      sent(h + 1) = received(h) + D

``received`` of the last pass is the answer. D is empty for sum and mean. For sym it is R in symmetric graphs, where
both degrees are one, and the sources of new edges in directed ones. Out-neighbours are in-neighbours in symmetric
graphs, so only their rows are read; in others every hop reads all edges once.
Memory: a byte a node, what a merge of new edges into a block takes, and rows in symmetric graphs.
"""

from __future__ import annotations

import numpy as np

from ecgl_kernels.node_set import mark_receivers
from ecgl_scale.engine.resources import Resources
from ecgl_scale.graph.adjacency import Ints
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.graph.node_set import NodeSet
from ecgl_scale.store.edges.some_rows import SomeRows
from ecgl_scale.store.graph import GraphStore

ROWS_AT_ONCE = 1 << 16
SETS = 8
"""Sets of nodes that there are at once."""
STREAM_FROM_SHARE = 4
"""With more than one node in so many to look at, reading all edges in order is quicker than rows here and there."""


def changed_since(graph: GraphStore, generation: int, hops: int, norm: Norm, resources: Resources) -> Ints:
    """Nodes, ascending, whose rows after ``hops`` aggregations may differ from those up to ``generation``."""
    num_nodes = graph.num_nodes
    if generation >= graph.generation:
        return np.empty(0, np.int64)
    if graph.has_dropped_since(generation):
        return np.arange(num_nodes)  # edges that went are in no list: all nodes may have lost some
    need = SETS * num_nodes // 8 + graph.edges.merge_bytes + graph.edges.reading_bytes(1)
    formula = f"{SETS} bits for each of {num_nodes:,} nodes, and edges that came later, merged"
    resources.require(need, stage="the search for nodes that have changed", formula=formula)
    receivers, senders = NodeSet(num_nodes), NodeSet(num_nodes)
    receivers.add(np.arange(*graph.new_nodes(generation)))
    new = receivers.copy()
    is_symmetric = graph.manifest.edges.symmetrised
    for pairs in graph.edges.older_since(generation):
        receivers.add(pairs.dst)
        if norm == "sym":
            senders.add(pairs.dst if is_symmetric else pairs.src)
    if norm == "sym" and not is_symmetric:
        for sources in graph.edges.own_since(generation):
            senders.add(sources)
    sent = new | senders
    received = receivers
    for _ in range(hops):
        received = receivers | sent | _receivers_of(sent, graph, resources)
        sent = received | senders
    return received.ids()


def _receivers_of(nodes: NodeSet, graph: GraphStore, resources: Resources) -> NodeSet:
    """Nodes that an edge from one of ``nodes`` goes into."""
    found, wanted = NodeSet(graph.num_nodes), len(nodes)
    if graph.manifest.edges.symmetrised and wanted * STREAM_FROM_SHARE < graph.num_nodes:
        stored, ids = SomeRows(graph.edges, threads=resources.threads), nodes.ids()
        for start in range(0, wanted, ROWS_AT_ONCE):
            found.add(stored.read(ids[start : start + ROWS_AT_ONCE]).values)
        return found
    for block, rows in graph.edges.stream_parts():
        mark_receivers(rows.offsets, rows.values, block.start, nodes.words, found.words)
    return found
