"""Inference on a store that has dropped nodes is that on the store without them."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.graph.changed import changed_since
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.store.append import append_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.edges.plan import BuildOptions
from tests.infer.networks import layers_of
from tests.resources import at
from tests.store.test_drop import Twin


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_outputs_of_the_nodes_that_are_left_are_those_of_the_compacted_store(tmp_path, kind):
    layers, settings = layers_of(5, 7, 3), InferSettings(backend="numba", partitions=3)
    outputs = []
    for path in (tmp_path / "grown", tmp_path / "compacted"):
        twin = Twin(BuildOptions(symmetrise=True), kind, 21)
        twin.build(twin.arrive(600, 4_000), path)
        append_store(twin.arrive(100, 1_000), path, at())
        drop_nodes(path, twin.drop(90), at())
        if path.name == "compacted":
            compact_store(path, at())
        outputs.append(infer_logits(GraphStore.open(path), layers, at(), settings=settings, work_directory=tmp_path))
    found, wanted = (np.asarray(output.logits) for output in outputs)
    np.testing.assert_allclose(found[twin.live], wanted, rtol=1e-5, atol=1e-6)
    grown = GraphStore.open(tmp_path / "grown")
    np.testing.assert_array_equal(changed_since(grown, 1, 1, "sym", at()), np.arange(grown.num_nodes))
