"""The plan of a whole ranking: what is counted where, that it follows the budget, and that it holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.store_ranking import plan_rank, rank_store, require_rank
from tests.resources import at

NUM_NODES, NUM_FEATURES = 20_000, 400
MANY_NODES = 300_000


@pytest.fixture(scope="module", params=["dense", "sparse"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    rng = np.random.default_rng(0)
    x = rng.random((NUM_NODES, NUM_FEATURES), np.float32)
    x = np.where(x < (0.02 if request.param == "sparse" else 1.0), x, np.float32(0))
    edges = rng.integers(0, NUM_NODES, (2, 5 * NUM_NODES))
    path = tmp_path_factory.mktemp("plan") / "graph.ecgl"
    return GraphStore.from_edge_index(edges, x, np.arange(NUM_NODES) % 7, path)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Enough nodes for what is held of each to show beside the reserves."""
    rng = np.random.default_rng(0)
    x = rng.random((MANY_NODES, 8), np.float32)
    path = tmp_path_factory.mktemp("wide") / "graph.ecgl"
    edges = rng.integers(0, MANY_NODES, (2, 2 * MANY_NODES))
    return GraphStore.from_edge_index(edges, x, np.arange(MANY_NODES) % 7, path)


def planned(graph: GraphStore, memory: int | None = None, **changes: Any) -> MemoryPlan:
    wanted = RankRequest(**{"kind": "both", **changes})
    return plan_rank(graph, wanted, at(memory=memory, threads=2), features=graph.features)


def needs(plan: MemoryPlan) -> dict[str, int]:
    return {stage.stage: stage.host_bytes for stage in plan.stages}


def test_scores_that_wait_for_others_count(graph: GraphStore) -> None:
    both, alone = needs(planned(graph)), needs(planned(graph, kind="diversity"))
    assert both["diversity"] - alone["diversity"] >= 8 * NUM_NODES
    assert [*alone] == ["diversity", "write"]


def test_a_start_and_a_choice_take_a_number_a_node(graph: GraphStore) -> None:
    plain, more = needs(planned(graph)), needs(planned(graph, start=Path("any"), topk=NUM_NODES))
    assert more["importance"] == plain["importance"] + 8 * NUM_NODES
    assert more["attributes"] == plain["attributes"]


def test_a_choice_is_planned_by_its_places_classes_and_candidates(wide: GraphStore) -> None:
    few = needs(planned(wide, topk=10))["write"]
    by_class = needs(planned(wide, topk=10, quota="class"))["write"]
    many = needs(planned(wide, topk=MANY_NODES, quota="class"))
    among = needs(planned(wide, topk=MANY_NODES, quota="class", candidates=("label", 0)))
    assert few <= by_class
    assert many["write"] - by_class >= 8 * (MANY_NODES - 20)  # the chosen, while rows are written
    assert all(among[name] == size + MANY_NODES for name, size in many.items())


def test_features_that_are_used_where_they_are_cost_diversity_nothing(graph: GraphStore) -> None:
    def least(x: np.ndarray) -> int:
        wanted = RankRequest(kind="diversity")
        return needs(plan_rank(graph, wanted, at(memory=64 * 2**30, threads=2), features=x))["diversity"]

    x = np.broadcast_to(np.float32(0), (NUM_NODES, NUM_FEATURES)).copy()
    assert least(x.astype(np.float64)) - least(x) == x.nbytes


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


def test_a_plan_that_does_not_fit_is_refused_with_one_that_does(graph: GraphStore) -> None:
    require_rank(planned(graph, memory=64 * 2**30))
    with pytest.raises(DoesNotFitError, match=r"ranking needs .* \(\w+\)") as caught:
        require_rank(planned(graph, memory=own_memory_bytes()))
    assert planned(graph, memory=named_size(caught.value)).fits


def named_size(error: DoesNotFitError) -> int:
    found = re.search(r"--memory (\d+)MiB", error.fix or "")
    assert found is not None
    return int(found[1]) << 20


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "importance"},
        {"kind": "importance", "use_features": False},
        {"kind": "diversity"},
        {"kind": "both"},
        {"kind": "both", "topk": 15_000, "quota": "class", "candidates": ("label", 3)},
    ],
)
def test_the_size_that_a_refusal_names_is_enough_for_every_stage(
    graph: GraphStore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    wanted = RankRequest(**changes)
    seen: list[Any] = []
    with pytest.raises(DoesNotFitError, match="ranking needs") as caught:
        rank_store(graph, tmp_path / "s.parquet", wanted, at(memory=own_memory_bytes() + 2**20, on_event=seen.append))
    assert seen == []
    assert list(tmp_path.iterdir()) == []
    size = named_size(caught.value)
    report = rank_store(graph, tmp_path / "s.parquet", wanted, at(memory=size))
    assert report.plan["peak_bytes"] <= size
    assert report.peak_bytes <= size


@pytest.mark.parametrize("quota", ["none", "class"])
@pytest.mark.parametrize("topk", [None, 1000, MANY_NODES])
def test_the_peak_stays_under_the_plan_whatever_is_chosen(
    wide: GraphStore, tmp_path: Path, topk: int | None, quota: str
) -> None:
    wanted = RankRequest("both", topk=topk, quota=quota if topk else "none")  # type: ignore[arg-type]
    report = rank_store(wide, tmp_path / "s.parquet", wanted, at(memory=2**31))
    assert report.num_written == (MANY_NODES if topk in (None, MANY_NODES) else report.num_written)
    assert report.peak_bytes <= report.plan["peak_bytes"]
