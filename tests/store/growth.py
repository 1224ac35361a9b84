"""Stores that grow, for tests: parts of one graph, and what the files of all generations hold, read naively."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ecgl_scale import GraphStore
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.compose import stored_blocks
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.view import read_view
from tests import naive
from tests.resources import at
from tests.store.graphs import random_edges


def parts_of(num_nodes, num_edges, seed=0):
    """Edges of a graph that grows to ``num_nodes`` in steps: those of a step lead between nodes there are by then."""
    return [random_edges(nodes, num_edges, seed + step) for step, nodes in enumerate(num_nodes)]


def grow_store(path, num_nodes, parts, options, resources=None):
    """Ingest the first part, append the others."""
    first, *others = [
        array_source(edges, num_nodes=nodes - before, adds=True)
        for edges, nodes, before in zip(parts, num_nodes, [0, *num_nodes[:-1]], strict=True)
    ]
    build_store(first, path, at(), options=options)
    for source in others:
        append_store(source, path, resources or at())
    return read_view(path)


def pairs_in(path):
    """``dst`` and ``src`` of a file of edges into older rows."""
    with pa.memory_map(str(path)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    return [*zip(table["dst"].to_pylist(), table["src"].to_pylist(), strict=True)]


def stored_edges(path):
    """All (src, dst) that the files hold, each checked to be in its place and order."""
    view = read_view(path)
    found = []
    for stored in stored_blocks(view.manifest):
        block = stored.block
        rows = pa.ipc.open_file(str(path / f"{stored.folder}edges/{stored.index:05d}.arrow")).get_batch(0).column(0)
        assert len(rows) == stored.num_rows <= block.num_rows
        for row, sources in enumerate(rows.to_pylist()):
            assert sources == sorted(sources)
            found += [(source, block.start + row) for source in sources]
        for piece in stored.older:
            pairs = pairs_in(path / piece.file)[piece.first : piece.stop]
            assert pairs == sorted(pairs, key=lambda pair: (pair[1] >> 16, *pair))
            assert all(block.start <= dst < block.stop and src < piece.num_nodes for dst, src in pairs)
            found += [(src, dst) for dst, src in pairs]
    return found


def assert_grown(path, parts, num_nodes, options):
    """Compare a grown store with one ingest of all parts."""
    everything = np.concatenate(parts, axis=1)
    edges, dropped_loops, dropped_duplicates = naive.stored_edges(
        [*zip(*everything.tolist(), strict=True)],
        num_nodes,
        symmetrise=options.symmetrise,
        keep_duplicates=options.keep_duplicates,
        self_loops=options.self_loops,
    )
    section = read_view(path).manifest.edges
    assert sorted(stored_edges(path)) == sorted(edges)
    read = GraphStore.open(path).to_edge_index().T.tolist()
    assert [*map(tuple, read)] == sorted(edges, key=lambda edge: edge[::-1])
    assert (section.num_edges, sum(section.block_edges)) == (len(edges), len(edges))
    assert section.input_edges == everything.shape[1]
    assert (section.dropped_self_loops, section.dropped_duplicates) == (dropped_loops, dropped_duplicates)


def files_of_generation(store, number):
    folder = store / f"generations/{number:04d}"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
