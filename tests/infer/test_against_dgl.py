"""Every backend and partitioning against one pass of DGL over the whole graph."""

from __future__ import annotations

from itertools import product

import pytest

from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from tests.infer.networks import BACKENDS, MODES, assert_close, dgl_logits, layers_of, matrix, random_graph
from tests.resources import at

MATHS = [*product(("gcn", "sage", "sgc"), ("sym", "sum", "mean"), ("inside", "outside"))]
"""Encoder, norm, place of the bias."""
LAYERS = layers_of(10, 16, 5)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g")


@pytest.fixture(scope="module")
def by_dgl(graph):
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    return {
        (encoder, norm, place): dgl_logits(graph, matrix(60, 10), LAYERS, encoder=encoder, norm=norm, bias_place=place)
        for encoder, norm, place in MATHS
    }


def maths_for(backend, mode):
    """A third of the maths each, so that all of them meet every backend and every partitioning."""
    return MATHS[-(BACKENDS.index(backend) + MODES.index(mode)) % 3 :: 3]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_partitioning_equals_one_pass_of_dgl(graph, by_dgl, tmp_path, backend, mode):
    partitioner, sources, partitions = mode
    for maths in maths_for(backend, mode):
        chosen = InferSettings(*maths, backend, partitioner=partitioner, partitions=partitions, sources=sources)
        found = infer_logits(graph, LAYERS, at(), settings=chosen, work_directory=tmp_path)
        assert_close(found.logits, by_dgl[maths])
        assert found.backend == backend
        assert found.partitions == (1 if partitions == "auto" else partitions)


def test_all_maths_meet_every_backend_and_every_partitioning():
    met = [(maths, *pair) for pair in product(BACKENDS, MODES) for maths in maths_for(*pair)]
    assert {(maths, backend) for maths, backend, _ in met} == set(product(MATHS, BACKENDS))
    assert {(maths, mode) for maths, _, mode in met} == set(product(MATHS, MODES))
