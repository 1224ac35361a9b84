"""Runs with context: unlabelled nodes are passed along and ranked with, and are never trained on, kept or scored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.table import built_in_methods
from ecgl_scale.rank.pagerank import PageRankSettings
from ecgl_scale.rank.ranking import Ranking
from ecgl_scale.session.forget import forget
from ecgl_scale.session.forget_nodes import Asked
from ecgl_scale.session.plan import run_plan
from ecgl_scale.session.plan.remedy import require_fit
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.run import run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.session.update import update
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.units import MIB
from tests.cli_runner import run_cli
from tests.resources import at
from tests.session.growing import append_part, grow_store
from tests.session.naive_run import NaiveRun
from tests.session.streams import (
    FEW_EPOCHS,
    Drawn,
    config_of,
    mapping_of,
    plan_config,
    read_json,
    without_clocks,
    write_config,
    write_store,
)
from tests.session.test_update import check_same, tensors_of

HOPS = "tasks.context=hops:2"
BOTH = "tasks.eval_scope=both"
WIDE = "analytic.width=64"
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "gcn": ("learn.train_as=gcn",),
    "propagated": ("learn.features=propagated:2",),
    "all edges": ("tasks.inter_task_edges=true",),
    "all edges, propagated": ("tasks.inter_task_edges=true", "learn.features=propagated:2"),
}


@pytest.fixture(scope="module")
def partly(drawn: Drawn) -> Drawn:
    """Two of three nodes have no label."""
    hidden = np.random.default_rng(5).random(len(drawn.y)) < 2 / 3
    return replace(drawn, y=np.where(hidden, -1, drawn.y))


@pytest.fixture(scope="module")
def partly_store(partly: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("partly") / "graph.ecgl", partly)


@pytest.mark.parametrize("context", ["hops:1", "hops:2", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_accuracies_are_those_of_dense_matrices_with_the_context(
    partly_store: Path, partly: Drawn, cache: Path, tmp_path: Path, context: str, kind: str
) -> None:
    keys = (FEW_EPOCHS, BOTH, f"tasks.context={context}", *KINDS[kind])
    found = run(config_of(partly_store, cache, *keys), tmp_path / "run")
    naive = NaiveRun(tmp_path / "run", partly)
    for scope, matrix in (("task", found["matrix"]), ("seen", found["matrix_seen"])):
        naive.config = config_of(partly_store, cache, *keys, f"tasks.eval_scope={scope}")
        assert matrix[-1] == pytest.approx(naive.last_row())


@pytest.mark.parametrize("kind", ["gcn", "propagated"])
def test_training_passes_features_of_the_context_along(
    partly_store: Path, partly: Drawn, cache: Path, tmp_path: Path, kind: str
) -> None:
    keys = ("learn.epochs=1", HOPS, *KINDS[kind])
    run(config_of(partly_store, cache, *keys), tmp_path / "run")
    naive = NaiveRun(tmp_path / "run", partly)
    loss = read_json(tmp_path / "run/state.json")["losses"][0][0]
    assert loss == pytest.approx(naive.first_loss([naive.stream[0]], with_edges=True), rel=1e-5)


@pytest.mark.parametrize("method", sorted(built_in_methods()))
def test_every_method_learns_with_context_and_keeps_labelled_nodes_alone(
    partly_store: Path, partly: Drawn, cache: Path, tmp_path: Path, method: str
) -> None:
    for train_as in ("mlp", "gcn"):
        if method == "analytic" and train_as == "gcn":
            continue
        keys = (FEW_EPOCHS, HOPS, f"method={method}", f"learn.train_as={train_as}", WIDE, "cat.steps=20")
        out = tmp_path / train_as
        found = run(config_of(partly_store, cache, *keys), out)
        assert found["aa"] > 100 / 6
        kept = [tensors.get("node_ids", tensors.get("nodes.0")) for tensors in tensors_of(out)]
        ids = [array for array in kept if array is not None]
        ids += [MemoryBank.load(out / "bank.arrow").node_ids] if (out / "bank.arrow").exists() else []
        assert all((partly.y[one] >= 0).all() for one in ids)


def test_the_bank_has_the_best_of_the_labelled_nodes_by_ranks_on_the_graph_with_context(
    partly_store: Path, tmp_path: Path
) -> None:
    keys = (FEW_EPOCHS, HOPS, "bank.select=ecgl", "bank.diversity=false", "bank.quota=none", "bank.budget=15")
    run(config_of(partly_store, None, *keys), tmp_path / "run")
    stream = TaskStream.load(tmp_path / "run/split.parquet", GraphStore.open(partly_store))
    bank = MemoryBank.load(tmp_path / "run/bank.arrow")
    for path in (tmp_path / "run/tasks").glob("*.ecgl"):
        graph = GraphStore.open(path)
        nodes = graph.column("node")
        (task,) = [one for one in stream if np.isin(one.node_ids, nodes).any()]
        assert graph.num_nodes > task.num_nodes
        ranks = Ranking(graph, at()).importance(graph.features, PageRankSettings(), gamma=None).ranks
        local = np.searchsorted(nodes, task.train_ids)
        best = task.train_ids[np.sort(np.argsort(-ranks[local], kind="stable")[:15])]
        np.testing.assert_array_equal(bank.node_ids[bank.task == task.index], best)


@pytest.mark.parametrize("context", ["hops:2", "all"])
@pytest.mark.parametrize("kind", [*KINDS, "analytic"])
def test_where_every_node_has_a_label_results_are_those_without(
    store: Path, cache: Path, tmp_path: Path, context: str, kind: str
) -> None:
    keys = (FEW_EPOCHS, BOTH, *KINDS.get(kind, ("method=analytic", WIDE)))
    plain = run(config_of(store, cache, *keys), tmp_path / "plain")
    found = run(config_of(store, cache, *keys, f"tasks.context={context}"), tmp_path / "context")
    check_same(tmp_path / "context", tmp_path / "plain")
    differing = {name for name, value in without_clocks(plain).items() if found[name] != value}
    assert differing == {"config_digest", "changed"}


def test_without_the_key_the_digest_is_what_it_was(store: Path) -> None:
    plain = config_of(store, None)
    assert plain.tasks.context == "none"
    assert config_of(store, None, "tasks.context=none").digest() == plain.digest()
    assert config_of(store, None, HOPS).digest() != plain.digest()
    assert config_of(store, None, "tasks.context=all").digest() != config_of(store, None, HOPS).digest()


def test_a_store_in_which_every_node_has_a_label_is_told(store: Path) -> None:
    said: list[Any] = []
    RunSetup.open(config_of(store, None, HOPS), at(on_event=said.append))
    assert [event.text for event in said if "every node has a label" in getattr(event, "text", "")]
    said.clear()
    RunSetup.open(config_of(store, None), at(on_event=said.append))
    assert not said


@pytest.mark.parametrize("value", ["hops:0", "hops:x", "hops:", "hops:-1", "hops:100", "some", "hops:1.5", "2", "true"])
def test_bad_values_are_refused(store: Path, tmp_path: Path, value: str) -> None:
    config = write_config(tmp_path / "run.yaml", store)
    ran = run_cli("run", config, "--out", tmp_path / "run", "--set", f"tasks.context={value}")
    assert ran.code == 2
    assert "tasks.context" in ran.stderr
    assert "hops:L" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_outputs_of_propagated_rows_cannot_be_ranked_by(store: Path) -> None:
    with pytest.raises(UsageError, match=r"rank.features logits"):
        config_of(store, None, HOPS, "learn.features=propagated:1", "rank.features=logits")


def test_any_threads_and_memory_give_the_same_bits(partly_store: Path, tmp_path: Path) -> None:
    for name, keys in {"one": ("threads=1",), "two": ("threads=3", "memory=3GiB")}.items():
        run(config_of(partly_store, None, FEW_EPOCHS, BOTH, HOPS, *keys), tmp_path / name)
    check_same(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("keys", [(), ("method=analytic", WIDE), ("learn.features=propagated:2",)], ids=str)
def test_workers_give_the_same_bits(partly_store: Path, tmp_path: Path, keys: tuple[str, ...]) -> None:
    config = tmp_path / "run.yaml"
    sets = [item for key in (FEW_EPOCHS, BOTH, HOPS, *keys) for item in ("--set", key)]
    write_config(config, partly_store)
    for name, more in {"alone": [], "workers": ["--workers", 2]}.items():
        ran = run_cli("--quiet", "run", config, "--out", tmp_path / name, *sets, *more)
        assert ran.code == 0, ran.stderr
    check_same(tmp_path / "workers", tmp_path / "alone")


@pytest.mark.parametrize("keys", [(), ("method=analytic", WIDE), ("tasks.inter_task_edges=true",)], ids=str)
def test_a_stopped_run_goes_on_to_the_same_results(
    partly_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    config = config_of(partly_store, None, FEW_EPOCHS, BOTH, HOPS, *keys)
    run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("ecgl_scale.session.run._evaluate", fail_at(1))
        with pytest.raises(RuntimeError, match="stopped here"):
            run(config, tmp_path / "stopped")
    run(config, tmp_path / "stopped", resume=True)
    check_same(tmp_path / "stopped", tmp_path / "whole")


def fail_at(task_index: int) -> Callable[..., Any]:
    from ecgl_scale.session import run as module

    evaluate = module._evaluate

    def failing(learner: Any, task: Any, state: Any) -> Any:
        if task.index == task_index:
            raise RuntimeError("stopped here")
        return evaluate(learner, task, state)

    return failing


# --- growth


def test_updates_of_a_store_that_grows_are_the_run_on_its_generations(partly: Drawn, tmp_path: Path) -> None:
    keys = ("tasks.kind=generation", FEW_EPOCHS, HOPS, BOTH)
    path = tmp_path / "growing.ecgl"
    append_part(path, partly, 0)
    run(config_of(path, None, *keys), tmp_path / "model")
    for part in (1, 2):
        append_part(path, partly, part)
        update(tmp_path / "model", path, tmp_path / "model")
    whole = grow_store(tmp_path / "whole.ecgl", partly)
    run(config_of(whole, None, *keys), tmp_path / "run")
    check_same(tmp_path / "model/versions/0002", tmp_path / "run")


def test_kept_tests_have_their_context_when_it_has_gone(partly: Drawn, tmp_path: Path) -> None:
    keys = ("tasks.kind=generation", FEW_EPOCHS, HOPS, "tasks.keep_tests=true")
    path = tmp_path / "growing.ecgl"
    append_part(path, partly, 0)
    run(config_of(path, None, *keys), tmp_path / "model")
    append_part(path, partly, 1)
    update(tmp_path / "model", path, tmp_path / "whole")
    drop_nodes(path, np.flatnonzero(partly.y[:400] < 0)[::2], at())
    update(tmp_path / "model", path, tmp_path / "model", where="year >= 2000")
    places = (tmp_path / "whole", tmp_path / "model/versions/0001")
    whole, dropped = (read_json(place / "results.json")["matrix"][1][0] for place in places)
    assert whole == dropped
    names = sorted(place.name for place in (tmp_path / "model/versions/0001/tests").glob("*.ecgl"))
    assert names == ["task-0000.ecgl", "task-0001.ecgl"]


# --- forgetting


def test_analytic_forgets_labelled_nodes_exactly(partly_store: Path, partly: Drawn, tmp_path: Path) -> None:
    keys = ("method=analytic", WIDE, HOPS, "analytic.ridge=0.1")
    run(config_of(partly_store, None, *keys), tmp_path / "model")
    stream = TaskStream.load(tmp_path / "model/split.parquet", GraphStore.open(partly_store))
    gone = np.sort(np.concatenate([task.train_ids[:4] for task in stream]))
    found = forget(tmp_path / "model", tmp_path / "left", Asked(gone))
    assert found["exact"]
    assert found["num_known"] == gone.size


@pytest.mark.parametrize("has_store", [True, False])
def test_nodes_that_may_have_been_context_cannot_be_forgotten(partly: Drawn, tmp_path: Path, has_store: bool) -> None:
    store = write_store(tmp_path / "graph.ecgl", partly)
    run(config_of(store, None, FEW_EPOCHS, HOPS), tmp_path / "model")
    if not has_store:
        shutil.rmtree(store)
    nodes = np.array([np.flatnonzero(partly.y >= 0)[0], np.flatnonzero(partly.y < 0)[3]])
    with pytest.raises(UsageError, match="1 of the nodes are in no task of the model and have no label"):
        forget(tmp_path / "model", tmp_path / "left", Asked(nodes))
    assert not (tmp_path / "left").exists()
    assert forget(tmp_path / "model", tmp_path / "left", Asked(nodes[:1]))["num_known"] == 1


# --- plans


@pytest.mark.parametrize("kind", [*KINDS, "analytic"])
@pytest.mark.parametrize("context", ["hops:1", "all"])
def test_a_plan_counts_the_context_and_its_named_fix_fits(partly_store: Path, kind: str, context: str) -> None:
    keys = (BOTH, *KINDS.get(kind, ("method=analytic", WIDE)))
    plain = plan_config(config_of(partly_store, None, *keys))
    config = config_of(partly_store, None, *keys, f"tasks.context={context}")
    setup = RunSetup.open(config)
    plan = plan_run(setup)
    more, less = ({stage.stage: stage for stage in one.stages} for one in (plan, plain))
    assert all(more[name].host_bytes >= less[name].host_bytes for name in more)
    assert more["extract"].written_bytes > less["extract"].written_bytes
    assert "context" in more["train"].formula
    small = setup.with_config(config_of(partly_store, None, *keys, f"tasks.context={context}", "memory=100MiB"))
    with pytest.raises(DoesNotFitError, match="--memory") as caught:
        require_fit(plan_run(small), small)
    named = str(caught.value.fix).partition("--memory ")[2].partition("MiB")[0]
    fits = setup.with_config(
        config_of(partly_store, None, *keys, f"tasks.context={context}", f"memory={int(named) + 16}MiB")
    )
    require_fit(plan_run(fits), fits)


def test_less_context_is_named_where_it_makes_a_run_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of two million nodes are 46 MiB: with them the run does not fit, without them it does."""
    num_nodes, labels = 2_000_000, np.full(2_000_000, -1)
    labels[:400] = np.arange(400) % 4
    edges = np.stack([np.arange(400, 1000), np.arange(600) % 400])
    store = tmp_path / "wide.ecgl"
    GraphStore.from_edge_index(edges, np.zeros((num_nodes, 1), np.float32), labels, store, num_nodes=num_nodes)
    mapping = mapping_of(store, learn={"hidden": [4], "epochs": 1, "scale": "none"}, bank={"budget": 4})
    mapping["tasks"]["context"] = "all"
    monkeypatch.setattr(run_plan, "own_memory_bytes", lambda: 300 * MIB)  # earlier tests' memory comes and goes
    setup = RunSetup.open(config_from_mapping(mapping))
    plan = plan_run(setup)
    budget = plan.peak_bytes - 24 * MIB
    small = setup.with_config(config_from_mapping(mapping, overrides=[f"memory={budget}"]))
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(plan_run(small), small)
    assert "tasks.context=hops:2 (which changes what is learned)" in str(caught.value.fix)
