"""The plan of a whole ranking: what is counted where, and that it follows the budget."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.run.memory import own_memory_bytes
from ecgl_scale.run.plan import MemoryPlan
from ecgl_scale.select.pagerank import PageRankSettings
from ecgl_scale.select.rank_plan import plan_rank

NUM_NODES, NUM_FEATURES = 20_000, 400


@pytest.fixture(scope="module", params=["dense", "sparse"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    rng = np.random.default_rng(0)
    x = rng.random((NUM_NODES, NUM_FEATURES), np.float32)
    x = np.where(x < (0.02 if request.param == "sparse" else 1.0), x, np.float32(0))
    edges = rng.integers(0, NUM_NODES, (2, 5 * NUM_NODES))
    return GraphStore.from_edge_index(edges, x, path=tmp_path_factory.mktemp("plan") / "graph.ecgl")


def planned(graph: GraphStore, memory: int | None = None, topk: int | None = None, **changes: bool) -> MemoryPlan:
    wanted = {"by_importance": True, "by_diversity": True, "use_features": True, "has_start": False, **changes}
    return plan_rank(graph, **wanted, topk=topk, pagerank=PageRankSettings(), memory=memory, threads=2)


def needs(plan: MemoryPlan) -> dict[str, int]:
    return {stage.stage: stage.host_bytes for stage in plan.stages}


def test_scores_that_wait_for_others_count(graph: GraphStore) -> None:
    both, alone = needs(planned(graph)), needs(planned(graph, by_importance=False))
    assert both["diversity"] - alone["diversity"] >= 8 * NUM_NODES
    assert [*alone] == ["diversity", "write"]


def test_a_start_and_a_choice_take_a_number_a_node(graph: GraphStore) -> None:
    plain, more = needs(planned(graph)), needs(planned(graph, has_start=True, topk=NUM_NODES))
    assert more["importance"] == plain["importance"] + 8 * NUM_NODES
    assert more["attributes"] == plain["attributes"]


def test_stages_that_adapt_stay_within_the_budget_or_at_their_least(graph: GraphStore) -> None:
    roomy = planned(graph, memory=64 * 2**30)
    assert roomy.fits
    least = planned(graph, memory=own_memory_bytes())
    assert not least.fits
    assert all(needs(least)[name] <= size for name, size in needs(roomy).items())
    if graph.manifest.features is not None and graph.manifest.features.kind == "dense":
        assert needs(least)["diversity"] < needs(roomy)["diversity"]


def test_what_is_said_names_the_largest_stage_and_the_budget(graph: GraphStore) -> None:
    plan = planned(graph, memory=64 * 2**30)
    largest = max(needs(plan), key=lambda name: needs(plan)[name])
    assert f"({largest}), within the budget of 64 GiB" in plan.summary()
    assert "NOT within" in planned(graph, memory=own_memory_bytes()).summary()
    assert plan.as_json()["peak_bytes"] == plan.peak_bytes
