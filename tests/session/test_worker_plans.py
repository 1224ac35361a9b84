"""What one worker needs: by its formula, and no less than what was measured where a work is opened from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.base.memory import PeakSampler, give_back_freed, own_memory_bytes
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.graph.propagate import plan_propagate_worker
from ecgl_scale.infer.layerwise import infer_logits, plan_inference, plan_inference_worker
from ecgl_scale.rank.diversity import plan_diversity, rank_diversity
from ecgl_scale.rank.pagerank import PageRankSettings, plan_importance, plan_sweep_worker, rank_importance
from ecgl_scale.rank.ranking import plan_rank_workers
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.store_ranking import plan_rank, rank_sizes
from ecgl_scale.session.plan.run_plan import plan_run, plan_run_workers
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.store.build import build_store, plan_build_worker
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.kron import kron_source
from ecgl_scale.store.verify import plan_verify_worker
from ecgl_scale.units import GIB, MIB
from tests.resources import at
from tests.session.streams import config_of

NUM_FEATURES = 24
PAPERS = 111_059_956


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Half a million nodes, so that vectors count beside the reserves."""
    path = tmp_path_factory.mktemp("graph") / "store"
    source = kron_source(scale=19, edge_factor=2, num_features=NUM_FEATURES)
    build_store(source, path, at(), options=BuildOptions(symmetrise=True))
    return GraphStore.open(path)


def used(job: Any) -> int:
    job()  # what is compiled stays
    give_back_freed()
    held = own_memory_bytes()
    with PeakSampler(0.001) as sampler:
        job()
    return sampler.peak_bytes - held


def test_a_worker_that_sweeps_holds_one_vector_of_four_bytes_a_node() -> None:
    settings = PageRankSettings()
    worker = plan_sweep_worker(PAPERS, settings, with_reset=True, threads=2).host_bytes
    driver = plan_importance(PAPERS, settings, with_reset=True, threads=2, shares_memory=False)
    alone = plan_importance(PAPERS, settings, with_reset=True, threads=2)
    assert 4 * PAPERS < worker < 4 * PAPERS + 256 * MIB
    assert 8 * PAPERS < driver < 8 * PAPERS + 128 * MIB
    assert alone > 28 * PAPERS
    small = plan_sweep_worker(1 << 21, settings, with_reset=False, threads=1).host_bytes
    assert small - plan_sweep_worker(1 << 20, settings, with_reset=False, threads=1).host_bytes >= 8 << 20


def test_rankings_on_a_worker_stay_within_the_plans_of_driver_and_worker(graph: GraphStore, tmp_path: Path) -> None:
    resources = at("2GiB", 1, executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work")
    settings, reset = PageRankSettings(max_iter=2), np.random.default_rng(0).random(graph.num_nodes)
    sizes = rank_sizes(graph, RankRequest(kind="both"), graph.features)
    of_worker = {plan.stage: plan.host_bytes for plan in plan_rank_workers(sizes, room_bytes=2 * GIB, threads=1)}
    assert of_worker.keys() == {"attributes", "importance", "diversity"}
    swept = used(lambda: rank_importance(graph, resources, reset=reset, settings=settings))
    driver = plan_importance(graph.num_nodes, settings, with_reset=True, threads=1, shares_memory=False)
    assert 8 * graph.num_nodes < swept <= driver + of_worker["importance"]
    scored = used(lambda: rank_diversity(graph, resources))
    assert sizes.diversity is not None
    least = plan_diversity(sizes.diversity, 1, shares_memory=False).least
    assert 4 * NUM_FEATURES * graph.num_nodes < scored <= least + of_worker["diversity"]
    shared = {
        stage.stage: stage.host_bytes
        for stage in plan_rank(graph, RankRequest(kind="both"), at(), features=None).stages
    }
    split = plan_rank(graph, RankRequest(kind="both"), resources, features=None)
    assert all(stage.host_bytes <= shared[stage.stage] for stage in split.stages)


def test_an_inference_on_a_worker_stays_within_its_plan(graph: GraphStore, tmp_path: Path) -> None:
    widths = (NUM_FEATURES, 16, 8)
    random = np.random.default_rng(0)
    layers = [(random.normal(size=(out, fan_in)), None) for fan_in, out in ((NUM_FEATURES, 16), (16, 8))]
    resources = at("2GiB", 1, executor=ScriptedExecutor(tmp_path / "counts"), work=tmp_path / "work")
    worker = plan_inference_worker(graph, widths, room_bytes=GIB, threads=1)
    alone = plan_inference(graph, widths, room_bytes=GIB, threads=1)
    assert worker.host_bytes > alone.host_bytes
    assert used(lambda: infer_logits(graph, layers, resources, work_directory=tmp_path / "infer")) <= worker.host_bytes


def test_a_worker_of_a_build_needs_a_piece_of_edges_for_each_of_its_threads() -> None:
    plans = [
        plan_build_worker(PAPERS, 3_200_000_000, room_bytes=8 * GIB, driver_threads=4, threads=threads).host_bytes
        for threads in (1, 2, 4)
    ]
    assert np.diff(plans).tolist() == [72 << 22, 2 * 72 << 22]
    assert plans[0] < 400 * MIB


def test_checks_and_propagation_need_buffers_and_columns(graph: GraphStore) -> None:
    one, two = (plan_verify_worker(graph.manifest, threads=threads).host_bytes for threads in (1, 2))
    assert 8 * MIB <= two - one < 9 * MIB
    plan = plan_propagate_worker(PAPERS, 1000, 128, room_bytes=64 * GIB)
    assert plan.host_bytes == (12 + 4 * 128) * PAPERS + 48 * MIB


@pytest.mark.parametrize("key", ["preset=plus", "learn.features=propagated:2"])
def test_a_run_says_what_a_worker_needs_in_each_stage(store: Path, cache: Path, key: str) -> None:
    setup = RunSetup.open(config_of(store, cache, key, "memory=4GiB"))
    stages = {stage.stage: stage.host_bytes for stage in plan_run_workers(setup, room_bytes=4 * GIB, threads=2)}
    expected = {"extract", "remember", "evaluate"} | ({"train"} if "propagated" in key else set())
    assert stages.keys() == expected
    assert all(0 < needed < plan_run(setup).peak_bytes + GIB for needed in stages.values())
