"""Blocks with what they reach; partitions that are no runs of rows give the same logits."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale.graph.adjacency import Adjacency, Scales
from ecgl_scale.graph.partition import cut_contiguous, cut_greedily, measure_halos
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.infer.source_block import Halos
from tests.infer.networks import assert_close, clustered_graph, layers_of, matrix, naive_logits, random_graph
from tests.resources import at


def test_halos_are_measured_as_they_are_gathered(tmp_path):
    graph = random_graph(tmp_path / "g", 400, 4000)
    edges = Adjacency(graph)
    for found in (cut_contiguous(edges, 5), cut_greedily(edges, 5)):
        halos = Halos(edges, Scales(None, None), found)
        for size, block in zip(measure_halos(edges, found), found.blocks, strict=True):
            asked = []
            rows = halos.block(block, lambda ids, asked=asked: asked.append(ids) or np.zeros((ids.size, 4), np.float32))
            assert (size.num_rows, size.num_sources) == (block.num_rows, asked[0].size)
            local = rows.cut(0, block.num_rows)
            assert size.num_edges == local.num_edges
            np.testing.assert_array_equal(asked[0][: block.num_rows], np.arange(400)[found.where(block)])
            np.testing.assert_array_equal(
                np.sort(asked[0][local.indices]),
                np.sort(np.concatenate([graph.edges.in_neighbours(i) for i in asked[0][: block.num_rows]])),
            )


def test_metis_partitions_give_the_same_logits_and_keep_their_cut(tmp_path):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    clustered, layers = clustered_graph(tmp_path / "g"), layers_of(10, 16, 5)
    settings = InferSettings(backend="numba", partitioner="metis", partitions=8)
    for _ in range(2):
        found = infer_logits(
            clustered, layers, at(), settings=settings, work_directory=tmp_path / "w", cuts_directory=tmp_path
        )
        assert_close(found.logits, naive_logits(clustered, matrix(320, 10), layers))
        assert found.partitions == 8
        assert not list((tmp_path / "w").iterdir())
        assert len(list(tmp_path.glob("*-8.metis.npy"))) == 1
