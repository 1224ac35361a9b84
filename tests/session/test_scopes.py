"""Tests on each task's own graph and on all that was seen: both at once are the two, and one graph is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ecgl_scale.errors import UsageError
from ecgl_scale.session.ecgl_model import ECGL
from ecgl_scale.session.forget import forget
from ecgl_scale.session.forget_nodes import Asked
from ecgl_scale.session.predict import GraphToTest, Predictor
from ecgl_scale.session.run import run
from ecgl_scale.session.state import RunState
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from tests.session.naive_run import NaiveRun
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, events_of, plan_config, read_json, without_clocks

MEASURES = ("aa", "af", "matrix", "aa_micro", "af_micro", "matrix_micro", "aa_after_each_task", "af_after_each_task")
STREAMS = {
    "class-il": (),
    "task-il": ("setting=task-il",),
    "time": ("tasks.kind=time", "tasks.column=year"),
    "all edges": ("tasks.inter_task_edges=true",),
    "propagated": ("learn.features=propagated:2",),
    "reference": ("preset=reference",),
}


def at_scope(scope: str) -> str:
    return f"tasks.eval_scope={scope}"


@pytest.mark.parametrize("stream", STREAMS)
def test_both_scopes_at_once_are_the_two_alone(
    store: Path, cache: Path, drawn: Drawn, tmp_path: Path, stream: str
) -> None:
    keys = (FEW_EPOCHS, *STREAMS[stream])
    task, seen, both = (
        run(config_of(store, cache, *keys, at_scope(scope)), tmp_path / scope) for scope in ("task", "seen", "both")
    )
    assert {name: both[name] for name in MEASURES} == {name: task[name] for name in MEASURES}
    assert {name: both[f"{name}_seen"] for name in MEASURES} == {name: seen[name] for name in MEASURES}
    assert {name: seen[f"{name}_seen"] for name in MEASURES} == {name: seen[name] for name in MEASURES}
    assert not [name for name in task if name.endswith("_seen")]
    assert [task["eval_scope"], seen["eval_scope"], both["eval_scope"]] == ["task", "seen", "both"]
    assert task["matrix"] != seen["matrix"]
    assert task["matrix"][0] == seen["matrix"][0]  # after the first task there is one graph
    assert both["final_losses"] == task["final_losses"]
    assert (tmp_path / "both/bank.arrow").read_bytes() == (tmp_path / "task/bank.arrow").read_bytes()
    naive = NaiveRun(tmp_path / "both", drawn)
    for scope, matrix in (("task", both["matrix"]), ("seen", both["matrix_seen"])):
        naive.config = config_of(store, cache, *keys, at_scope(scope))
        assert matrix[-1] == pytest.approx(naive.last_row())


def test_one_inference_over_all_that_was_seen_gives_the_scores_of_every_task(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inferred: list[int] = []
    infer = Predictor._infer

    def counting(predictor: Predictor, weights: Any, on: GraphToTest, *rest: Any) -> Any:
        inferred.append(on.graph.num_nodes)
        return infer(predictor, weights, on, *rest)

    monkeypatch.setattr(Predictor, "_infer", counting)
    run(config_of(store, cache, FEW_EPOCHS, at_scope("both")), tmp_path / "both")
    assert inferred == [300, 300, 300, 300, 600, 300, 300, 300, 900]
    inferred.clear()
    run(config_of(store, cache, FEW_EPOCHS, at_scope("seen")), tmp_path / "seen")
    assert inferred == [300, 600, 900]


def test_events_state_and_metrics_have_both_scopes(store: Path, cache: Path, tmp_path: Path) -> None:
    results = run(config_of(store, cache, FEW_EPOCHS, at_scope("both")), tmp_path / "run")
    last = events_of(tmp_path / "run", "TaskFinished")[-1]
    assert (last["accuracies"], last["accuracies_seen"]) == (results["matrix"][-1], results["matrix_seen"][-1])
    rows = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pylist()
    for kind, name in (("macro_seen", "matrix_seen"), ("micro_seen", "matrix_micro_seen")):
        found = {(row["task"], row["tested"]): row["value"] for row in rows if row["kind"] == kind}
        assert found == {(t, j): results[name][t][j] for t in range(3) for j in range(t + 1)}


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run is stopped here."""


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_a_run_that_is_killed_among_the_tests_of_a_task_goes_on_with_the_same_results(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The second task has four tests: two on its tasks' own graphs, two on both together."""
    config = config_of(store, cache, FEW_EPOCHS, at_scope("both"))
    wanted = run(config, tmp_path / "whole")
    write, count = RunState.write, 0

    def stopping(state: RunState, directory: Path) -> None:
        nonlocal count
        count += (state.task, state.step) == (1, "evaluate")
        if count > at or state.task > 1:
            raise Stopped
        write(state, directory)

    with monkeypatch.context() as patch:
        patch.setattr(RunState, "write", stopping)
        with pytest.raises(Stopped):
            run(config, tmp_path / "run")
    state = RunState.read(tmp_path / "run")
    assert state is not None
    found = [len(row) for rows in state.macro_rows for row in rows[1:2]]
    assert found == {1: [], 2: [1], 3: [2], 4: [2, 1], 5: [2, 2]}[at]
    assert without_clocks(run(config, tmp_path / "run", resume=True)) == without_clocks(wanted)


def test_a_state_from_before_there_were_two_scopes_can_be_read(store: Path, cache: Path, tmp_path: Path) -> None:
    run(config_of(store, cache, FEW_EPOCHS, at_scope("task")), tmp_path / "run")
    state = RunState.read(tmp_path / "run")
    assert state is not None
    document = {name: value for name, value in vars(state).items() if not name.endswith("_seen")}
    document["stages"] = {name: vars(record) for name, record in state.stages.items()}
    assert RunState._from_json({"version": 1, **document}) == state


EVALUATE = {
    "all": [0, 1, 2],
    "last": [2],
    "every:2": [1, 2],
    "every:3": [2],
    "every:1": [0, 1, 2],
    "none": [],
}


@pytest.mark.parametrize("mode", EVALUATE)
def test_tests_are_made_after_the_tasks_that_are_asked_for(store: Path, cache: Path, tmp_path: Path, mode: str) -> None:
    wanted = run(config_of(store, cache, FEW_EPOCHS, at_scope("both")), tmp_path / "all")
    found = run(config_of(store, None, FEW_EPOCHS, at_scope("both"), f"tasks.evaluate={mode}"), tmp_path / "run")
    for name in ("matrix", "matrix_seen", "matrix_micro"):
        rows = [row if t in EVALUATE[mode] else [None] * 3 for t, row in enumerate(wanted[name])]
        assert found[name] == rows
    assert found == read_json(tmp_path / "run" / "results.json")
    tested = EVALUATE[mode]
    assert (found["aa"], found["aa_seen"]) == ((wanted["aa"], wanted["aa_seen"]) if tested else (None, None))
    diagonal = [wanted["matrix"][2][t] - wanted["matrix"][t][t] for t in tested if t < 2]
    assert found["af"] == (pytest.approx(sum(diagonal) / len(diagonal)) if diagonal else None)
    events = events_of(tmp_path / "run", "TaskFinished")
    assert [len(event["accuracies_seen"]) for event in events] == [t + 1 if t in tested else 0 for t in range(3)]
    graphs = [GraphStore.open(path).num_nodes for path in (tmp_path / "run" / "tasks").glob("*.ecgl")]
    assert graphs == [300, 300, 300]  # that of all that was seen is larger every time, and needed once


@pytest.mark.parametrize("value", ["every:0", "every:", "every", "never", "every:-1", "every:2.5", "3", "ALL"])
def test_other_times_of_tests_are_refused(store: Path, value: str) -> None:
    with pytest.raises(UsageError, match=r"tasks\.evaluate") as caught:
        config_of(store, None, f"tasks.evaluate={value}")
    assert "every:K" in str(caught.value)


def test_other_scopes_are_refused_and_kept_tests_are_of_single_tasks(store: Path) -> None:
    with pytest.raises(UsageError, match=r"tasks\.eval_scope"):
        config_of(store, None, at_scope("all"))
    with pytest.raises(UsageError, match="eval_scope is both"):
        config_of(store, None, at_scope("both"), "tasks.keep_tests=true")


def test_when_tests_are_made_tells_runs_apart_and_the_usual_time_does_not(store: Path) -> None:
    """A run from before there was the key has the digest of one with `all`."""
    usual, last = config_of(store, None), config_of(store, None, "tasks.evaluate=last")
    assert usual.digest() != last.digest()
    assert usual.digest() == config_of(store, None, "tasks.evaluate=all").digest()


def test_the_model_as_an_object_has_both_matrices(store: Path, cache: Path, tmp_path: Path) -> None:
    results = run(config_of(store, cache, at_scope("both")), tmp_path / "run")
    config, graph = config_of(store, cache), GraphStore.open(store)
    keys = {"cache": str(cache), "learn.scale": config.learn.scale, "tasks.eval_scope": "both"}
    learn = config.learn
    model = ECGL(learn.hidden, epochs=learn.epochs, lr=learn.lr, budget=config.bank.budget, config=keys)
    tasks = TaskStream.load(tmp_path / "run" / "split.parquet", graph)
    for task in tasks:
        model.fit_task(graph, task)
        assert model.evaluate(graph, tasks.seen(task)) == results["matrix"][task.index][: task.index + 1]
    assert model.matrix_seen_ is not None
    assert (model.matrix_.to_lists(), model.matrix_seen_.to_lists()) == (results["matrix"], results["matrix_seen"])
    model.save(tmp_path / "model")
    for path in (tmp_path / "model", tmp_path / "run"):
        again = ECGL.load(path)
        assert (again.matrix_, again.matrix_seen_) == (model.matrix_, model.matrix_seen_)
    [alone] = model.evaluate(graph, [tasks[1]])
    assert alone == results["matrix"][-1][1]
    assert ECGL(config={"tasks.eval_scope": "task"}).get_params()["config"] == {"tasks.eval_scope": "task"}


def test_a_model_that_has_forgotten_nodes_keeps_both_matrices(store: Path, cache: Path, tmp_path: Path) -> None:
    results = run(config_of(store, cache, FEW_EPOCHS, at_scope("both")), tmp_path / "run")
    forget(tmp_path / "run", tmp_path / "less", Asked([5, 17], None))
    found = read_json(tmp_path / "less" / "results.json")
    assert {name: found[name] for name in results if "seen" in name} == {
        name: results[name] for name in results if "seen" in name
    }
    model = ECGL.load(tmp_path / "less")
    assert model.matrix_seen_ is not None
    assert model.matrix_seen_.to_lists() == results["matrix_seen"]


def test_plans_count_both_scopes(store: Path) -> None:
    stages = {
        scope: {stage.stage: stage for stage in plan_config(config_of(store, None, at_scope(scope))).stages}
        for scope in ("task", "seen", "both")
    }
    assert stages["both"]["evaluate"].host_bytes == stages["seen"]["evaluate"].host_bytes
    assert stages["both"]["evaluate"].host_bytes > stages["task"]["evaluate"].host_bytes
    assert stages["both"]["extract"].written_bytes > stages["task"]["extract"].written_bytes
    last = plan_config(config_of(store, None, at_scope("both"), "tasks.evaluate=last")).stages[0]
    none = plan_config(config_of(store, None, at_scope("both"), "tasks.evaluate=none")).stages
    # After the last task the store itself is tested on.
    assert stages["both"]["extract"].written_bytes > last.written_bytes == none[0].written_bytes
    assert none[0].written_bytes == stages["task"]["extract"].written_bytes
    assert none[-1].formula.startswith("nothing is tested")
