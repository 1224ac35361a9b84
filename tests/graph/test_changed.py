"""Nodes that a store's growth has changed: all whose outputs differ are among them, and few others."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ecgl_scale.graph.changed import changed_since
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from tests.infer.networks import propagation
from tests.resources import at
from tests.store.graphs import random_edges

SIZES = [40, 55, 55, 60]
OPTIONS = [
    BuildOptions(),
    BuildOptions(symmetrise=True),
    BuildOptions(self_loops="keep"),
    BuildOptions(self_loops="add", symmetrise=True),
    BuildOptions(keep_duplicates=True, self_loops="keep"),
]


def grown(path, parts, options):
    graph = GraphStore.from_edge_index(parts[0], path=path, num_nodes=SIZES[0], options=options)
    for edges, before, after in zip(parts[1:], SIZES[:-1], SIZES[1:], strict=True):
        graph = graph.append(edges, num_nodes=after - before)
    return graph


def sparse_parts(seed):
    """Few edges, so that most nodes are far from what is new."""
    return [random_edges(nodes, count, seed + nodes) for nodes, count in zip(SIZES, (40, 6, 3, 2), strict=True)]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_node_whose_outputs_differ_is_found(tmp_path, options):
    graph = grown(tmp_path / "g", sparse_parts(0), options)
    num_found, num_differ = 0, 0
    for since, norm, hops in product(range(4), ("sym", "sum", "mean"), (1, 2, 3)):
        old, before = GraphStore.open(tmp_path / "g", since), np.zeros((60, 60))
        before[: old.num_nodes, : old.num_nodes] = np.linalg.matrix_power(propagation(old, norm), hops)
        after = np.linalg.matrix_power(propagation(graph, norm), hops)
        differs = np.flatnonzero((np.abs(before - after) > 1e-12).any(axis=1))
        found = changed_since(graph, since, hops, norm, at())
        assert set(differs) <= set(found)
        assert (np.diff(found) > 0).all()
        assert found.size == 0 or since < 3
        num_found, num_differ = num_found + found.size, num_differ + differs.size
    assert num_found <= 1.1 * num_differ


@pytest.mark.parametrize("norm", ["sym", "mean"])
@pytest.mark.parametrize("symmetrise", [False, True])
def test_what_is_far_from_all_that_is_new_is_left_alone(tmp_path, symmetrise, norm):
    """A path 0 - 1 - ... - 29 999; the new node hears the last node, and is heard by it where edges go both ways."""
    nodes = np.arange(29_999)
    options = BuildOptions(symmetrise=symmetrise)
    graph = GraphStore.from_edge_index(
        np.stack([nodes, nodes + 1]), path=tmp_path / "g", num_nodes=30_000, options=options
    ).append(np.array([[29_999], [30_000]]), num_nodes=1)
    found = changed_since(graph, 0, 2, norm, at()).tolist()
    if not symmetrise:
        assert found == ([29_999, 30_000] if norm == "sym" else [30_000])
    elif norm == "mean":
        assert found == [29_997, 29_998, 29_999, 30_000][1:]
    else:
        assert found == [29_997, 29_998, 29_999, 30_000]


def test_a_store_that_never_grew_has_not_changed(tmp_path):
    graph = GraphStore.from_edge_index(random_edges(50, 100), path=tmp_path / "g", num_nodes=50)
    assert changed_since(graph, 0, 2, "sym", at()).size == 0
