"""Rankings of a store that has dropped nodes are those of the store without them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.store_ranking import rank_store
from ecgl_scale.store.append import append_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.edges.plan import BuildOptions
from tests.resources import at
from tests.store.test_drop import Twin


@pytest.fixture(scope="module", params=["dense", "sparse"])
def stores(request, tmp_path_factory):
    """A store of three generations, in which one ends before and one after the first 2**16 rows; and it compacted."""
    folder, twin = tmp_path_factory.mktemp("stores"), Twin(BuildOptions(), request.param, 11)
    for path in (folder / "grown", folder / "compacted"):
        twin = Twin(BuildOptions(), request.param, 11)
        twin.build(twin.arrive(65_000, 60_000), path)
        append_store(twin.arrive(2_000, 20_000), path, at())
        drop_nodes(path, twin.drop(3_000), at())
    compact_store(folder / "compacted", at())
    return GraphStore.open(folder / "grown"), GraphStore.open(folder / "compacted"), twin


def test_attributes_and_importance_are_those_of_the_compacted_store(stores):
    grown, compacted, twin = stores
    reset = attribute_vector(grown.require_features(), at(), gamma=0.3)
    wanted = attribute_vector(compacted.require_features(), at(), gamma=0.3)
    np.testing.assert_allclose(reset[twin.live] / reset[twin.live].sum(), wanted, rtol=1e-5)
    for dangling in ("uniform", "reset"):
        settings = PageRankSettings(dangling=dangling, tol=1e-12)
        for given, own in ((None, None), (reset, wanted)):
            found = rank_importance(grown, at(), reset=given, settings=settings).ranks
            expected = rank_importance(compacted, at(), reset=own, settings=settings).ranks
            np.testing.assert_allclose(found[twin.live], expected, rtol=1e-5)
            assert not found[sorted(twin.dropped)].any()
            assert found.sum() == pytest.approx(1.0, abs=1e-9)


def test_the_bits_do_not_depend_on_who_sweeps(stores, tmp_path):
    grown, _, twin = stores
    start = np.arange(grown.num_nodes, dtype=np.float64)
    settings = PageRankSettings(max_iter=3)
    here = rank_importance(grown, at(), start=start, settings=settings).ranks
    resources = at(executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work")
    there = rank_importance(grown, resources, start=start, settings=settings).ranks
    np.testing.assert_array_equal(here, there)
    assert not here[sorted(twin.dropped)].any()


def test_dropped_nodes_are_not_chosen_and_have_scores_of_zero(stores, tmp_path):
    grown, _, twin = stores
    rank_store(grown, tmp_path / "all.parquet", RankRequest(kind="both"), at())
    table = pq.read_table(tmp_path / "all.parquet")
    gone = sorted(twin.dropped)
    for name in ("importance", "diversity"):
        assert not table[name].to_numpy()[gone].any()
    request = RankRequest(kind="both", topk=grown.num_nodes)
    assert rank_store(grown, tmp_path / "top.parquet", request, at()).num_written == twin.live.size
    assert pq.read_table(tmp_path / "top.parquet")["node"].to_pylist() == twin.live.tolist()
    np.save(tmp_path / "x.npy", np.ones((grown.num_nodes, 2), np.float32))
    with pytest.raises(UsageError, match="rows of dropped nodes"):
        rank_store(grown, tmp_path / "no.parquet", RankRequest(features=tmp_path / "x.npy"), at())
