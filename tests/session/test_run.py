"""Whole runs on a small store: the files they leave, and that what they measured follows from those files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.config.method_sections import method_names
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session.run import run
from ecgl_scale.store.build import build_store
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.units import GIB
from tests.faults.running import start_child
from tests.resources import at
from tests.session.naive_run import NaiveRun, forgetting_of
from tests.session.streams import (
    FEW_EPOCHS,
    Drawn,
    config_of,
    events_of,
    read_json,
    without_clocks,
    write_config,
    write_store,
)

RANKED = "bank.select=ecgl"
PROMISED = {"aa", "af", "matrix", "setting", "method", "preset", "seed", "split_hash", "stages", "versions"}


@dataclass(frozen=True)
class Finished:
    path: Path
    results: dict[str, Any]

    @property
    def bank(self) -> MemoryBank:
        return MemoryBank.load(self.path / "bank.arrow")

    @property
    def losses(self) -> dict[tuple[int, int], float]:
        rows = pq.read_table(self.path / "metrics.parquet").to_pylist()
        return {(row["task"], row["epoch"]): row["value"] for row in rows if row["kind"] == "loss"}


Run = Callable[..., Finished]


@pytest.fixture(scope="module")
def finish(store: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the config with these keys set, or take what an earlier test has run."""
    known: dict[tuple[str, ...], Finished] = {}

    def finish(*overrides: str) -> Finished:
        if overrides not in known:
            path = tmp_path_factory.mktemp("runs") / "run"
            known[overrides] = Finished(path, run(config_of(store, cache, *overrides), path))
        return known[overrides]

    return finish


def check_last_row(finished: Finished, drawn: Drawn) -> NaiveRun:
    naive = NaiveRun(finished.path, drawn)
    assert finished.results["matrix"][-1] == pytest.approx(naive.last_row())
    return naive


def test_a_run_leaves_the_documented_files_and_nothing_it_only_worked_with(finish: Run) -> None:
    path = finish().path
    names = {entry.name for entry in path.iterdir()}
    assert names >= {
        "bank.arrow",
        "config.yaml",
        "events.jsonl",
        "metrics.parquet",
        "plan.json",
        "results.json",
        "run.log",
        "split.parquet",
        "state.json",
        "weights",
    }
    assert [name for name in names if name.startswith(".") or name in ("work", "tasks")] == [".lock"]
    assert {entry.name for entry in (path / "weights").iterdir()} >= {"model.safetensors", "model.json"}
    assert events_of(path, "RunStopped")[-1]["reason"] == "finished"
    assert len(events_of(path, "EpochFinished")) == 3 * 12


def test_without_a_cache_the_task_graphs_are_in_the_runs_own_directory(store: Path, tmp_path: Path) -> None:
    run(config_of(store, None, FEW_EPOCHS, "method=finetune"), tmp_path / "run")
    graphs = [GraphStore.open(path) for path in (tmp_path / "run" / "tasks").glob("*.ecgl")]
    assert sorted(graph.num_nodes for graph in graphs) == [300, 300, 300]


def test_each_graph_is_cut_by_metis_once_however_often_it_is_tested_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tasks are six tests; a second run with the same cache finds all cuts."""
    cut: list[str] = []

    def deal(metis: Any, count: int) -> Any:
        cut.append(metis.graph.path.name)
        return np.arange(metis.graph.num_nodes, dtype=np.int32) % count

    monkeypatch.setattr("ecgl_scale.graph.metis.run_metis", deal)
    keys = (FEW_EPOCHS, "tasks.eval_scope=task", "infer.partitioner=metis", "infer.partitions=3", "infer.backend=numba")
    for name in ("first", "second"):
        run(config_of(store, tmp_path / "cache", *keys), tmp_path / name)
    assert len(cut) == len(set(cut)) == 3
    assert len(list((tmp_path / "cache").glob("*-3.metis.npy"))) == 3


def test_results_have_the_promised_keys_and_are_what_the_file_holds(finish: Run) -> None:
    finished = finish()
    results = finished.results
    assert results == read_json(finished.path / "results.json")
    assert results.keys() >= PROMISED
    assert (results["method"], results["preset"], results["setting"], results["seed"]) == (
        "ecgl",
        "plus",
        "class-il",
        0,
    )
    assert results["num_tasks"] == 3
    assert results["num_epochs"] == 3 * 12
    changed = {"learn.hidden", "learn.epochs", "learn.lr", "learn.scale", "bank.budget", "tasks.eval_scope"}
    assert set(results["changed"]) == changed
    assert [task["classes"] for task in results["tasks"]] == [[0, 1], [2, 3], [4, 5]]
    for stage in results["stages"].values():
        assert stage.keys() >= {"seconds", "peak_bytes", "planned_bytes", "read_bytes", "written_bytes"}
        assert stage["seconds"] > 0
    stream = TaskStream.load(finished.path / "split.parquet", GraphStore.open(results["store"]))
    assert stream.split_hash == results["split_hash"]


@pytest.mark.parametrize("kind", ["", "_micro"])
def test_the_matrix_is_lower_triangular_and_aa_and_af_are_its_means(finish: Run, kind: str) -> None:
    results = finish().results
    matrix = results["matrix" + kind]
    assert len(matrix) == 3
    for task, row in enumerate(matrix):
        assert [value is None for value in row] == [other > task for other in range(3)]
        assert all(0 < value <= 100 for value in row[: task + 1])
    assert results["aa" + kind] == pytest.approx(sum(matrix[-1]) / 3)
    assert results["af" + kind] == pytest.approx(forgetting_of(matrix))
    if not kind:
        assert results["aa_after_each_task"] == pytest.approx(
            [sum(row[: task + 1]) / (task + 1) for task, row in enumerate(matrix)]
        )
        assert results["af_after_each_task"][0] is None


def test_metrics_hold_every_loss_and_every_accuracy(finish: Run) -> None:
    finished = finish()
    rows = pq.read_table(finished.path / "metrics.parquet").to_pylist()
    assert finished.losses.keys() == {(task, epoch) for task in range(3) for epoch in range(12)}
    assert [finished.losses[task, 11] for task in range(3)] == finished.results["final_losses"]
    for task in range(3):
        assert finished.losses[task, 11] < finished.losses[task, 0]
    for kind, matrix in (("macro", finished.results["matrix"]), ("micro", finished.results["matrix_micro"])):
        found = {(row["task"], row["tested"]): row["value"] for row in rows if row["kind"] == kind}
        assert found == {(task, on): matrix[task][on] for task in range(3) for on in range(task + 1)}


def test_two_runs_of_a_config_give_the_same_bits(finish: Run, store: Path, cache: Path, tmp_path: Path) -> None:
    again = Finished(tmp_path / "run", run(config_of(store, cache), tmp_path / "run"))
    assert without_clocks(again.results) == without_clocks(finish().results)
    assert again.losses == finish().losses
    for name in ("bank.arrow", "split.parquet"):
        assert (again.path / name).read_bytes() == (finish().path / name).read_bytes()
    first, second = (load_tensors(one.path / "weights" / "model.safetensors")[0] for one in (again, finish()))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_another_seed_gives_another_split_and_other_weights(finish: Run) -> None:
    other, first = finish("seed=1"), finish()
    assert other.results["split_hash"] != first.results["split_hash"]
    assert other.losses[0, 0] != first.losses[0, 0]


@pytest.mark.parametrize("room_bytes", [GIB // 2, 4 * GIB], ids=["512MiB", "4GiB"])
def test_memory_and_threads_change_no_bit_of_the_results(finish: Run, room_bytes: int) -> None:
    limited = finish(f"memory={own_memory_bytes() + room_bytes}", "threads=1")
    assert without_clocks(limited.results) == without_clocks(finish().results)


def test_ecgl_lies_between_finetune_and_joint(finish: Run) -> None:
    found = {method: finish(f"method={method}").results for method in ("finetune", "ecgl", "joint")}
    assert found["finetune"]["aa"] + 30 < found["ecgl"]["aa"] <= found["joint"]["aa"] + 2
    assert found["finetune"]["af"] < -80 < -30 < found["ecgl"]["af"]
    assert found["joint"]["af"] > -10


def test_finetune_keeps_no_bank(finish: Run) -> None:
    finished = finish("method=finetune")
    assert not (finished.path / "bank.arrow").exists()
    assert not any("bank" in stage["formula"] for stage in read_json(finished.path / "plan.json")["stages"])
    assert finished.results["matrix"][-1][:2] == [0.0, 0.0]


def test_a_budget_of_zero_is_finetuning(finish: Run) -> None:
    forgetful = finish("bank.budget=0", "bank.quota=none", "learn.last_layer=trained")
    assert not (forgetful.path / "bank.arrow").exists()
    assert forgetful.results["matrix"] == finish("method=finetune").results["matrix"]


def test_joint_begins_every_task_with_new_weights_and_all_rows_so_far(finish: Run, drawn: Drawn) -> None:
    finished = finish("method=joint")
    naive = check_last_row(finished, drawn)
    for task in naive.stream:
        wanted = naive.first_loss(naive.stream.seen(task), with_edges=False)
        assert finished.losses[task.index, 0] == pytest.approx(wanted, rel=1e-5)
    assert not (finished.path / "bank.arrow").exists()


def test_the_bank_has_at_most_the_budget_of_each_tasks_training_nodes_and_the_stores_rows(
    finish: Run, drawn: Drawn
) -> None:
    finished = finish()
    bank, naive = finished.bank, NaiveRun(finished.path, drawn)
    assert bank.tasks == [0, 1, 2]
    for task in naive.stream:
        part = bank.for_tasks([task.index])
        assert len(part) == 40
        assert set(part.node_ids) <= set(task.train_ids)
        assert np.bincount(part.label)[task.positions].tolist() == [20, 20]
    assert np.array_equal(bank.label, naive.stream.labels[bank.node_ids])
    assert np.array_equal(bank.rows, drawn.x[bank.node_ids])


def test_a_bank_is_never_larger_than_the_training_nodes_there_are(finish: Run, drawn: Drawn) -> None:
    finished = finish("bank.budget=100000", FEW_EPOCHS)
    naive = NaiveRun(finished.path, drawn)
    wanted = np.concatenate([task.train_ids for task in naive.stream])
    assert np.array_equal(finished.bank.node_ids, wanted)


@pytest.mark.parametrize("preset", ["plus", "paper", "reference"])
@pytest.mark.parametrize("setting", ["class-il", "task-il"])
def test_every_preset_runs_in_both_settings_and_forgets_less_than_finetuning(
    finish: Run, drawn: Drawn, preset: str, setting: str
) -> None:
    finished = finish(f"preset={preset}", f"setting={setting}")
    naive = check_last_row(finished, drawn)
    assert naive.config.preset == preset
    if preset == "plus" and setting == "class-il":
        assert naive.first_loss([naive.stream[0]], with_edges=False) == pytest.approx(finished.losses[0, 0], rel=1e-5)
    if setting == "task-il":
        assert finished.results["aa"] > 80
    else:
        assert finished.results["af"] > finish("method=finetune").results["af"]


def test_task_il_is_easier_than_class_il(finish: Run) -> None:
    assert finish("setting=task-il", "preset=plus").results["aa"] > finish().results["aa"]


def test_tasks_by_time_have_all_classes_each_so_both_settings_are_the_same(finish: Run, drawn: Drawn) -> None:
    by_time = ("tasks.kind=time", "tasks.column=year", FEW_EPOCHS)
    finished, other = finish(*by_time), finish(*by_time, "setting=task-il")
    naive = check_last_row(finished, drawn)
    assert [task["name"] for task in finished.results["tasks"]] == ["year 2000", "year 2001", "year 2002"]
    for year, task in zip((2000, 2001, 2002), naive.stream, strict=True):
        assert np.array_equal(task.node_ids, np.flatnonzero(drawn.year == year))
        assert task.classes == (0, 1, 2, 3, 4, 5)
    assert naive.layers[-1][0].shape[0] == 6
    assert other.results["matrix"] == finished.results["matrix"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("tasks.inter_task_edges=true",),
        ("tasks.eval_scope=seen",),
        ("tasks.inter_task_edges=true", "tasks.eval_scope=seen", "preset=reference"),
        ("tasks.score=valid",),
        ("tasks.class_order=[5, 3, 1, 0]",),
        ("tasks.classes_per_task=3", "setting=task-il"),
        ("learn.encoder=sage",),
        ("learn.encoder=sgc",),
        ("learn.scale=row_l2",),
        ("learn.scale=standard",),
        ("learn.features=propagated:2",),
        ("learn.features=propagated:1", "tasks.inter_task_edges=true"),
        ("learn.features=propagated:1", "tasks.eval_scope=seen"),
        ("learn.hidden=[]",),
        ("learn.hidden=[16, 12]", "learn.dropout=0.2"),
        ("infer.backend=torch", "infer.partitions=3", "infer.partitioner=ldg"),
    ],
    ids=" ".join,
)
def test_accuracies_follow_from_the_weights_the_graph_and_the_keys(
    finish: Run, drawn: Drawn, overrides: tuple[str, ...]
) -> None:
    finished = finish(*overrides, FEW_EPOCHS)
    check_last_row(finished, drawn)
    assert finished.results["matrix"] != finish(FEW_EPOCHS).results["matrix"] or "infer.backend=torch" in overrides


def test_training_nodes_and_scored_nodes_are_apart_and_valid_scores_validation_nodes(finish: Run, drawn: Drawn) -> None:
    finished = finish("tasks.score=valid", FEW_EPOCHS)
    assert finished.results["score"] == "valid"
    assert finished.results["split_hash"] == finish().results["split_hash"]
    for task in NaiveRun(finished.path, drawn).stream:
        assert not np.intersect1d(task.train_ids, np.concatenate([task.valid_ids, task.test_ids])).size
        assert not np.intersect1d(task.valid_ids, task.test_ids).size


@pytest.mark.parametrize("encoder", ["gcn", "sage", "sgc"])
def test_training_as_a_graph_network_sends_messages_in_the_loss(finish: Run, drawn: Drawn, encoder: str) -> None:
    finished = finish("learn.train_as=gcn", f"learn.encoder={encoder}", FEW_EPOCHS)
    naive = check_last_row(finished, drawn)
    first = [naive.stream[0]]
    with_edges, without = (naive.first_loss(first, with_edges=with_edges) for with_edges in (True, False))
    assert finished.losses[0, 0] == pytest.approx(with_edges, rel=1e-5)
    assert finished.losses[0, 0] != pytest.approx(without, rel=1e-3)
    assert len(finished.bank) == 120


def test_joint_training_as_a_graph_network_sends_messages_on_every_task(finish: Run, drawn: Drawn) -> None:
    finished = finish("learn.train_as=gcn", "method=joint", FEW_EPOCHS)
    naive = check_last_row(finished, drawn)
    wanted = naive.first_loss(list(naive.stream), with_edges=True)
    assert finished.losses[2, 0] == pytest.approx(wanted, rel=1e-5)


def test_scaled_and_propagated_rows_are_remembered_as_the_model_sees_them(finish: Run, drawn: Drawn) -> None:
    for override in ("learn.scale=row_l2", "learn.scale=standard"):
        finished = finish(override, FEW_EPOCHS)
        bank, naive = finished.bank, NaiveRun(finished.path, drawn)
        assert np.allclose(bank.dense_rows(), naive.x[bank.node_ids], atol=1e-5)
        assert not np.allclose(bank.dense_rows(), drawn.x[bank.node_ids], atol=1e-2)
    finished = finish("learn.features=propagated:2", FEW_EPOCHS)
    naive = NaiveRun(finished.path, drawn)
    for task in naive.stream:
        part = finished.bank.for_tasks([task.index])
        twice = np.linalg.matrix_power(naive.propagation(task.node_ids), 2) @ naive.x[task.node_ids]
        wanted = twice[np.searchsorted(task.node_ids, part.node_ids)]
        assert np.allclose(part.dense_rows(), wanted, atol=1e-5)


def test_minibatches_take_a_step_each(finish: Run, drawn: Drawn) -> None:
    """180 training rows a task are two batches of 100 or less; from the second task on 40 or 80 rows of the bank."""

    def steps(finished: Finished) -> int:
        path = finished.path / "weights" / read_json(finished.path / "state.json")["checkpoint"]
        return int(load_tensors(path)[0]["adam.step"])

    batched = finish("learn.batching=minibatch", "learn.batch_rows=100", FEW_EPOCHS)
    assert steps(batched) == 3 * (2 + 3 + 3)
    assert steps(finish(FEW_EPOCHS)) == 3 * 3
    check_last_row(batched, drawn)


@pytest.mark.parametrize(
    ("overrides", "by_importance", "by_diversity"),
    [
        ([RANKED, "bank.importance=false"], False, True),
        ([RANKED, "bank.diversity=false"], True, False),
        (["bank.select=random"], False, False),
        (["bank.select=herding"], False, False),
        (["bank.select=kmeans"], False, False),
    ],
)
def test_ablations_choose_as_many_nodes_by_other_scores(
    finish: Run, overrides: list[str], by_importance: bool, by_diversity: bool
) -> None:
    usual, other = finish(RANKED, FEW_EPOCHS).bank, finish(*overrides, FEW_EPOCHS).bank
    assert np.isfinite(usual.importance).any()
    assert np.isfinite(usual.diversity).any()
    assert np.isfinite(other.importance).any() == by_importance
    assert np.isfinite(other.diversity).any() == by_diversity
    assert np.bincount(other.label).tolist() == np.bincount(usual.label).tolist() == [20] * 6
    assert not np.array_equal(other.node_ids, usual.node_ids)


def test_sparse_features_stay_sparse_and_give_the_same_accuracies(drawn: Drawn, cache: Path, tmp_path: Path) -> None:
    thin = replace(drawn, x=np.where(drawn.x > 3.5, drawn.x, 0).astype(np.float32))
    found = []
    for kind in ("sparse", "dense"):
        source = array_source(thin.edge_index, x=thin.x, y=thin.y)
        store, path = tmp_path / f"{kind}.ecgl", tmp_path / kind
        build_store(source, store, at(), features_as=kind)
        found.append(Finished(path, run(config_of(store, cache, FEW_EPOCHS), path)))
        check_last_row(found[-1], thin)
    sparse, dense = found
    assert sparse.bank.is_sparse
    assert not dense.bank.is_sparse
    assert np.array_equal(sparse.bank.dense_rows(), thin.x[sparse.bank.node_ids])
    assert sparse.losses[0, 0] == pytest.approx(dense.losses[0, 0], rel=1e-5)


def test_a_single_task_has_no_forgetting(finish: Run) -> None:
    results = finish("tasks.classes_per_task=6", FEW_EPOCHS).results
    assert results["af"] is None
    assert results["aa"] == results["matrix"][0][0]


@pytest.mark.parametrize("method", method_names())
def test_classes_may_come_one_at_a_time_in_class_il(finish: Run, method: str) -> None:
    results = finish("tasks.classes_per_task=1", f"method={method}", "cat.steps=2", FEW_EPOCHS).results
    assert len(results["matrix"]) == 6
    assert results["matrix"][0][0] == 100.0  # nothing to be mistaken for


def test_classes_that_are_left_out_are_said_and_in_no_output(finish: Run) -> None:
    finished = finish("tasks.class_order=[5, 3, 1, 0]", FEW_EPOCHS)
    assert [gone["label"] for gone in finished.results["dropped_classes"]] == [2, 4]
    assert read_json(finished.path / "weights" / "model.json")["classes"] == [3, 5, 0, 1]


def test_the_plan_has_every_stage_in_order_with_its_formula(finish: Run) -> None:
    plan = read_json(finish().path / "plan.json")
    assert [stage["stage"] for stage in plan["stages"]] == ["extract", "train", "remember", "evaluate"]
    assert plan["fits"]
    assert plan["peak_bytes"] == plan["held_bytes"] + max(stage["host_bytes"] for stage in plan["stages"])
    for stage in plan["stages"]:
        assert stage["host_bytes"] > 0
        assert stage["formula"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["memory=500MiB"],
        ["memory=500MiB", "method=joint"],
        ["memory=500MiB", "learn.train_as=gcn"],
        ["memory=500MiB", "preset=reference", "tasks.eval_scope=seen"],
        ["memory=500MiB", "method=ewc", "learn.features=propagated:1"],
    ],
    ids=" ".join,
)
def test_every_stage_takes_about_what_was_planned(tmp_path: Path, large: Path, overrides: list[str]) -> None:
    """In a process of its own, whose memory nobody else has used before."""
    config = write_config(tmp_path / "run.yaml", large, bank={"budget": 500})
    keys = [argument for key in ["learn.epochs=2", "learn.hidden=[64]", *overrides] for argument in ("--set", key)]
    child = start_child(None, (), "run", config, "--out", tmp_path / "run", *keys)
    child.join(120)
    assert child.exitcode == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["stages"]) == ["extract", "train", "remember", "evaluate"]
    for name, stage in results["stages"].items():
        assert 0.3 * stage["planned_bytes"] <= stage["peak_bytes"] <= 1.1 * stage["planned_bytes"], name
        assert stage["peak_bytes"] <= 1.1 * 500 * 2**20, name


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of 30 MB: more than a process's own memory goes up and down by."""
    from tests.session.streams import draw_graph

    return write_store(tmp_path_factory.mktemp("large") / "graph.ecgl", draw_graph(60_000, num_features=128))
