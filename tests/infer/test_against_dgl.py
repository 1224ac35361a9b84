"""Every backend and partitioning against one pass of DGL over the whole graph."""

from __future__ import annotations

from itertools import product

import pytest

from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from tests.infer.networks import BACKENDS, MODES, assert_close, dgl_logits, layers_of, matrix, random_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("partitioner", "sources", "partitions"), MODES)
def test_every_partitioning_equals_one_pass_of_dgl(graph, tmp_path, backend, partitioner, sources, partitions):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    x, layers = matrix(60, 10), layers_of(10, 16, 5)
    for encoder, norm, place in product(("gcn", "sage", "sgc"), ("sym", "sum", "mean"), ("inside", "outside")):
        chosen = InferSettings(
            encoder, norm, place, backend, partitioner=partitioner, partitions=partitions, sources=sources
        )
        found = infer_logits(graph, layers, settings=chosen, work_directory=tmp_path)
        assert_close(found.logits, dgl_logits(graph, x, layers, encoder=encoder, norm=norm, bias_place=place))
        assert found.backend == backend
        assert found.partitions == (1 if partitions == "auto" else partitions)
