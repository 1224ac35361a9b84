"""Graphs for the tests of the build, and what a store of them must hold."""

from __future__ import annotations

import numpy as np

from ecgl_scale.base.events import ignore_events
from ecgl_scale.store import build
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.units import MIB
from tests import naive
from tests.resources import at

KEEP_ALL = BuildOptions(keep_duplicates=True, self_loops="keep")
ROOMY = MemoryShares(threads=2, block_edges=1 << 20, kept_bytes=256 * MIB, share_bytes=128 * MIB)


def random_edges(num_nodes, num_edges, seed=0):
    """Half of the edges among a few nodes, so that there are duplicates, loops and hubs; some nodes stay alone."""
    random = np.random.default_rng(seed)
    few = max(1, min(num_nodes, 40))
    near = random.integers(0, few, (2, num_edges // 2)) * (num_nodes // few)
    return np.concatenate([near, random.integers(0, num_nodes, (2, num_edges - num_edges // 2))], axis=1)


def build_with(monkeypatch, path, edge_index, num_nodes, options, shares):
    """Build with given memory shares instead of ones made from a budget."""
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: shares)
    source = array_source(edge_index, num_nodes=num_nodes)
    manifest = build_store(source, path, at(), options=options)
    assert sorted(entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")) == []
    return manifest


def bytes_of(store):
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def assert_holds(path, edge_index, num_nodes, options):
    """Compare rows, tiles and counts of a store with the twins."""
    store = GraphStore.open(path)
    edges, dropped_loops, dropped_duplicates = naive.stored_edges(
        [*zip(*edge_index.tolist(), strict=True)],
        num_nodes,
        symmetrise=options.symmetrise,
        keep_duplicates=options.keep_duplicates,
        self_loops=options.self_loops,
    )
    section = store.manifest.edges
    assert (section.num_edges, sum(section.block_edges)) == (len(edges), len(edges))
    assert section.input_edges == edge_index.shape[1]
    assert (section.dropped_self_loops, section.dropped_duplicates) == (dropped_loops, dropped_duplicates)
    indptr, indices = naive.csr_of(edges, num_nodes)
    for block, rows in store.edges.stream():
        wanted = np.array(indptr[block.start : block.stop + 1])
        np.testing.assert_array_equal(rows.offsets, wanted - wanted[0])
        np.testing.assert_array_equal(rows.values, indices[wanted[0] : wanted[-1]])
        tiles = naive.tiles_of(edges, num_nodes, block.start, block.stop)
        stripe = store.tiles.read(block)
        np.testing.assert_array_equal(stripe.offsets, np.cumsum([0] + [len(tile) for tile in tiles]))
        np.testing.assert_array_equal(stripe.values, [edge for tile in tiles for edge in tile])
    verify_store(path, at(on_event=ignore_events))
    return store
