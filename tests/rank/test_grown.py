"""Rankings of a store that has grown are those of one ingest, by threads and by workers that share nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.degrees import keep_degrees, out_degrees
from ecgl_scale.rank.diversity import plan_diversity, rank_diversity
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.rank.rank_vectors import stripe_cuts
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.sizes import FeatureSizes
from ecgl_scale.rank.store_ranking import plan_rank
from ecgl_scale.store.edges import older
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.units import MIB
from tests.grown_stores import ACROSS_RANGES, make_both
from tests.resources import at

SETTINGS = PageRankSettings(tol=0.0, max_iter=8)
CASES = {
    "dense": ("dense", BuildOptions(symmetrise=True)),
    "sparse": ("sparse", BuildOptions()),
    "duplicates": ("dense", BuildOptions(keep_duplicates=True, self_loops="keep")),
}


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    kind, options = CASES[request.param]
    return make_both(tmp_path_factory.mktemp("both"), ACROSS_RANGES, num_edges=30_000, kind=kind, options=options)


@pytest.fixture(params=["threads", "one thread", "a worker"])
def resources(request, tmp_path):
    if request.param == "a worker":
        return at(threads=2, executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work")
    return at(threads=1 if request.param == "one thread" else 2)


def test_degrees_are_equal(both, resources):
    np.testing.assert_array_equal(out_degrees(both.grown), out_degrees(both.whole))
    kept = keep_degrees(both.grown, resources, "degrees", stripe_cuts(both.grown))
    np.testing.assert_array_equal(kept.read(0, both.whole.num_nodes), out_degrees(both.whole)[: both.whole.num_nodes])


def test_importance_is_equal_to_the_last_digits(both, resources):
    wanted = rank_importance(both.whole, at(), settings=SETTINGS).ranks
    found = rank_importance(both.grown, resources, settings=SETTINGS).ranks
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_importance_of_an_older_generation_is_what_it_was(both):
    before = GraphStore.open(both.grown.path, generation=2)
    assert before.num_nodes == ACROSS_RANGES[2]
    scores = rank_importance(before, at(), settings=SETTINGS).ranks
    again = rank_importance(GraphStore.open(before.address), at(threads=1), settings=SETTINGS).ranks
    np.testing.assert_array_equal(scores, again)
    assert abs(scores.sum() - 1.0) < 1e-9


def test_the_attribute_vector_is_equal_to_the_last_digits(both, resources):
    wanted = attribute_vector(both.whole.features, at())
    np.testing.assert_allclose(attribute_vector(both.grown.features, resources), wanted, rtol=1e-12)


@pytest.mark.parametrize("part_edges", [50, 1 << 21])
def test_diversity_is_the_same_bits(both, resources, part_edges, monkeypatch):
    monkeypatch.setattr(older, "PART_EDGES", part_edges)
    wanted = rank_diversity(both.whole, at()).scores
    np.testing.assert_array_equal(rank_diversity(both.grown, resources).scores, wanted)


def test_a_plan_counts_the_memory_of_merged_edges(both):
    request, resources = RankRequest(kind="both"), at("1GiB", threads=2)
    plans = [plan_rank(graph, request, resources, features=graph.features) for graph in (both.grown, both.whole)]
    needs = [{stage.stage: stage.host_bytes for stage in plan.stages}["diversity"] for plan in plans]
    assert needs[0] - needs[1] >= both.grown.edges.reading_bytes(2) - (1 << 20) > 0


def test_the_least_budget_gives_the_same_bits_and_is_kept_to(both):
    wanted = rank_diversity(both.whole, at()).scores
    rank_diversity(both.grown, at(threads=2))  # what stays with the process does so before the budget is chosen
    sizes = FeatureSizes.of(both.grown.features, both.grown)
    need = plan_diversity(sizes, 2, edge_bytes=both.grown.edges.reading_bytes(2)).least
    budget = own_memory_bytes() + need + 2 * MIB
    with PeakSampler() as sampler:
        found = rank_diversity(both.grown, at(budget, threads=2))
    np.testing.assert_array_equal(found.scores, wanted)
    assert sampler.peak_bytes <= budget
