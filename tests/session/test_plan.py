"""What the plan of a run counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.memory import give_back_freed, own_memory_bytes
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.infer.hops import plan_k_hops
from ecgl_scale.learn.graph_segment import held_graph_bytes
from ecgl_scale.session.learner import Learner
from ecgl_scale.session.plan.run_plan import LIBRARY_BYTES
from ecgl_scale.session.setup import RunSetup, open_store, task_stream
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import GIB, MIB
from tests.session.streams import Drawn, config_of, plan_config, write_store


def stages_of(store: Path, cache: Path, *overrides: str) -> dict[str, StagePlan]:
    return {stage.stage: stage for stage in plan_config(config_of(store, cache, *overrides)).stages}


def test_libraries_count_before_they_work(store: Path, cache: Path) -> None:
    assert plan_config(config_of(store, cache)).held_bytes >= LIBRARY_BYTES + 64 * MIB


def test_no_memory_of_a_device_is_planned_where_there_is_none(store: Path, cache: Path) -> None:
    assert {stage.device_bytes for stage in stages_of(store, cache, "learn.device=cpu").values()} == {0}


def test_bank_and_weights_count_in_every_stage(store: Path, cache: Path) -> None:
    small, large = (stages_of(store, cache, f"bank.budget={budget}") for budget in (10, 100))
    added = 3 * 90 * (4 * 16 + 40)
    for name in ("extract", "train", "evaluate"):
        assert large[name].host_bytes - small[name].host_bytes >= added, name
    wide = stages_of(store, cache, "learn.hidden=[100000]")
    assert wide["extract"].host_bytes - small["extract"].host_bytes >= 16 * 16 * 100_000


def test_propagated_features_are_planned_where_they_are_made(store: Path, cache: Path) -> None:
    stages = stages_of(store, cache, "learn.features=propagated:2")
    assert stages["evaluate"].formula.startswith("features passed along 2 edges")
    graph = open_store(config_of(store, cache))
    sized = [
        plan_k_hops(graph, 2, room_bytes=64 * GIB, threads=2, num_nodes=count).host_bytes
        for count in (10**6, 2 * 10**6)
    ]
    assert sized[1] - sized[0] >= 4 * 16 * 10**6


def test_propagated_features_of_a_task_are_in_a_file(store: Path, cache: Path, tmp_path: Path) -> None:
    config = config_of(store, cache, "learn.features=propagated:1")
    setup = RunSetup.open(config)
    graph, stream = setup.graph, setup.stream
    learner = Learner(setup, tmp_path)
    found = learner.predictor.features_of(stream[0])
    assert isinstance(found, np.memmap)
    assert found.shape == (stream[0].node_ids.size, graph.num_features)


def test_a_graph_is_planned_in_blocks_from_a_hidden_layer_of_32_mib_on(store: Path, cache: Path) -> None:
    """300 nodes a task; what memory there is makes no difference, as blocks round otherwise."""
    for hidden, is_whole in ((27_000, True), (29_000, False)):
        for memory in ("64GiB", "8GiB"):
            keys = ("learn.train_as=gcn", f"learn.hidden=[{hidden}]", f"memory={memory}")
            formula = stages_of(store, cache, *keys)["train"].formula
            assert ("a block" not in formula) == is_whole, formula


@pytest.mark.parametrize("method", ["gem", "joint"])
def test_graphs_of_old_tasks_are_planned_where_they_are_held(method: str, store: Path, cache: Path) -> None:
    alone, with_old = (stages_of(store, cache, f"method={name}", "learn.train_as=gcn") for name in ("finetune", method))
    config = config_of(store, cache)
    graph = open_store(config)
    nodes = [task.node_ids.size for task in task_stream(graph, config)]
    least = sum(held_graph_bytes(graph, [16, 24, 6], size, 0) for size in sorted(nodes)[:-1])
    assert with_old["train"].host_bytes - alone["train"].host_bytes >= least
    assert "other tasks' graphs" in with_old["train"].formula


@pytest.mark.parametrize("features", ["raw", "propagated:1"])
def test_standardised_features_are_planned_as_the_dense_ones_they_become(
    drawn: Drawn, tmp_path: Path, features: str
) -> None:
    """Sparse in the store; taking a mean off every column leaves no zeros in the graphs of the tasks."""
    x = np.random.default_rng(0).random((len(drawn.x), 3000)).astype(np.float32)
    plans = {}
    for kind, share in (("sparse", 0.01), ("dense", 1.0)):
        kept = np.where(x < share, x, np.float32(0))
        store = write_store(tmp_path / f"{kind}.ecgl", drawn, x=kept)
        assert GraphStore.open(store).manifest.features.kind == kind  # type: ignore[union-attr]
        for scale in ("standard", "row_l2"):
            overrides = ("method=finetune", "memory=4GiB", f"learn.scale={scale}", f"learn.features={features}")
            overrides += ("tasks.eval_scope=task",)
            plans[kind, scale] = stages_of(store, tmp_path, *overrides)["evaluate"]
    made, stored, sparse = plans["sparse", "standard"], plans["dense", "standard"], plans["sparse", "row_l2"]
    # Two threads read a block of dense rows: of the store, where it has them, else of the largest task, 300 nodes.
    block = 4 * 300 * 3000 if features == "raw" else 0  # all is held, and read in place, where it is passed along
    assert made.host_bytes == sparse.host_bytes + 2 * block <= stored.host_bytes
    assert made.read_bytes == pytest.approx(stored.read_bytes, rel=0.1)  # chunks are padded
    assert sparse.read_bytes < made.read_bytes


def test_memory_that_was_freed_is_given_back() -> None:
    kept = [bytearray(64 * 1024) for _ in range(2000)]
    for piece in kept:
        piece[::4096] = b"x" * 16
    del kept[:-1]  # the last one keeps the heap from shrinking by itself
    before = own_memory_bytes()
    give_back_freed()
    assert own_memory_bytes() <= before
    assert len(kept) == 1
