"""A store grows and a model goes on: what a run on all generations learns, and nothing that came later."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.session.ecgl_model import ECGL
from ecgl_scale.session.infer import Asked, infer_store
from ecgl_scale.session.run import run
from ecgl_scale.session.update import update
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from tests.faults.running import run_cli
from tests.resources import at
from tests.session.growing import CUTS, append_part, grow_store
from tests.session.model_contents import all_bytes
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, read_json, write_store
from tests.session.test_update import check_same

GENERATIONS = (FEW_EPOCHS, "tasks.kind=generation")


@pytest.fixture(scope="module")
def grown(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grow_store(tmp_path_factory.mktemp("grown") / "graph.ecgl", drawn)


@pytest.mark.parametrize(
    "overrides", [(), ("method=joint", "setting=task-il"), ("tasks.inter_task_edges=true", "method=ewc")], ids=" ".join
)
def test_updates_after_each_append_are_the_run_on_all_generations(
    drawn: Drawn, grown: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run(config_of(grown, None, *GENERATIONS, *overrides), tmp_path / "whole")
    store, model = tmp_path / "graph.ecgl", tmp_path / "model"
    append_part(store, drawn, 0)
    run(config_of(store, None, *GENERATIONS, *overrides), model)
    for part in (1, 2):
        append_part(store, drawn, part)
        results = update(model, store, model)
        assert results["tasks"][-1]["name"] == f"generation {part}"
    check_same(model / "versions" / "0002", tmp_path / "whole")
    assert read_json(model / "versions" / "0002" / "sealed.json")["generation"] == 2


def test_a_tasks_graph_has_the_edges_that_were_known_when_it_came(drawn: Drawn, grown: Path, tmp_path: Path) -> None:
    results = run(config_of(grown, None, *GENERATIONS), tmp_path / "run")
    assert [task["num_nodes"] for task in results["tasks"]] == np.diff(CUTS).tolist()
    graphs = [GraphStore.open(path) for path in (tmp_path / "run" / "tasks").glob("*.ecgl")]
    [first] = [graph for graph in graphs if graph.num_nodes == CUTS[1]]
    inside = drawn.edge_index[:, (drawn.edge_index < CUTS[1]).all(axis=0)]
    assert first.num_edges == int((inside.sum(axis=0) % 10 != 0).sum())


def test_a_run_goes_on_with_the_generation_it_has_begun_with(drawn: Drawn, grown: Path, tmp_path: Path) -> None:
    store = tmp_path / "graph.ecgl"
    append_part(store, drawn, 0)
    wanted = run(config_of(store, None, FEW_EPOCHS), tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecgl_scale.session.run._evaluate", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config_of(store, None, FEW_EPOCHS), stopped)
    append_part(store, drawn, 1)
    found = run(config_of(store, None, FEW_EPOCHS), stopped, resume=True)
    assert (found["matrix"], found["split_hash"]) == (wanted["matrix"], wanted["split_hash"])
    named = run(config_of(Path(f"{grown}#generation=0"), None, FEW_EPOCHS), tmp_path / "named")
    assert named["matrix"] == wanted["matrix"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_update_goes_on_with_the_generation_it_has_begun_with(drawn: Drawn, tmp_path: Path) -> None:
    store, model = tmp_path / "graph.ecgl", tmp_path / "model"
    append_part(store, drawn, 0)
    run(config_of(store, None, *GENERATIONS), model)
    append_part(store, drawn, 1)
    wanted = update(model, store, tmp_path / "wanted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecgl_scale.session.run._evaluate", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            update(model, store, model)
    append_part(store, drawn, 2)
    found = update(model, store, model, resume=True)
    assert (found["matrix"], found["num_tasks"]) == (wanted["matrix"], 2)
    assert update(model, store, model)["num_tasks"] == 3


def test_a_stream_of_generations_is_learned_in_python_as_by_a_run(drawn: Drawn, grown: Path, tmp_path: Path) -> None:
    results = run(config_of(grown, None, *GENERATIONS, "learn.scale=row_l2"), tmp_path / "run")
    settings = {"hidden": [24], "epochs": 3, "lr": 0.02, "budget": 40, "device": "cpu"}
    store = tmp_path / "graph.ecgl"
    tasks: TaskStream | None = None
    for part in range(3):
        graph = append_part(store, drawn, part)
        new = np.arange(*CUTS[part : part + 2])
        tasks = (TaskStream.empty(graph) if tasks is None else tasks).add(graph, new, f"part {part}")
        model = ECGL(**settings) if part == 0 else ECGL.load(tmp_path / f"model-{part - 1}")
        model.fit_task(graph, tasks[-1])
        model.evaluate(graph, tasks)
        model.save(tmp_path / f"model-{part}")
    assert model.matrix_.to_lists() == results["matrix"]
    kept = MemoryBank.load(tmp_path / "run" / "bank.arrow")
    assert np.array_equal(model.bank_.node_ids, kept.node_ids)
    whole = GraphStore.open(grown)
    assert TaskStream.of_generations(whole).split_hash == results["split_hash"]
    again = ECGL.load(tmp_path / "run")
    assert again.evaluate(whole, list(TaskStream.of_generations(whole))) == results["matrix"][-1]


def test_a_store_whose_rows_have_other_numbers_is_refused(drawn: Drawn, tmp_path: Path) -> None:
    store, model = tmp_path / "graph.ecgl", tmp_path / "model"
    append_part(store, drawn, 0)
    run(config_of(store, None, *GENERATIONS), model)
    append_part(store, drawn, 1)
    drop_nodes(store, np.array([3, 5]), at())
    update(model, store, tmp_path / "dropped")  # they are hidden, and rows keep their numbers
    compact_store(store, at())
    before = all_bytes(model)
    with pytest.raises(InvalidInputError, match=r"compacted after 2 of its nodes were dropped[\s\S]*ecgl run"):
        update(model, store, tmp_path / "updated")
    ran = run_cli("update", model, store, "--out", model, "--if-new")
    assert ran.code == 3
    assert "rows have other numbers" in ran.stderr
    assert all_bytes(model) == before
    assert not (tmp_path / "updated").exists()
    found = infer_store(model, store, tmp_path / "new.parquet", asked=Asked(nodes="new"))
    assert found["num_predicted"] == CUTS[2] - CUTS[1]


def test_tests_may_be_left_out_and_made_again(drawn: Drawn, grown: Path, tmp_path: Path) -> None:
    store, model = tmp_path / "graph.ecgl", tmp_path / "model"
    append_part(store, drawn, 0)
    run(config_of(store, None, *GENERATIONS), model)
    append_part(store, drawn, 1)
    untested = run_cli("update", model, store, "--out", model, "--evaluate", "none", "--json")
    assert untested.code == 0, untested.stderr
    assert json.loads(untested.stdout)["matrix"][1] == [None, None]
    append_part(store, drawn, 2)
    assert run_cli("update", model, store, "--out", model, "--evaluate", "all").code == 0
    run(config_of(grown, None, *GENERATIONS), tmp_path / "whole")
    found, whole = (read_json(path / "results.json") for path in (model / "versions" / "0002", tmp_path / "whole"))
    assert found["matrix"][2] == whole["matrix"][2]
    assert found["final_losses"] == whole["final_losses"]
    with pytest.raises(UsageError, match=r"learn\.epochs"):
        update(model, store, tmp_path / "other", overrides=["learn.epochs=7"])


def test_a_store_with_other_names_of_classes_is_foreign(drawn: Drawn, tmp_path: Path) -> None:
    stores = {}
    for name, letters in (("own", "abcdef"), ("other", "fedcba")):
        y = [letters[label] for label in np.sort(drawn.y)]
        stores[name] = write_store(tmp_path / f"{name}.ecgl", drawn, y=y)
    run(config_of(stores["own"], None, FEW_EPOCHS, "tasks.class_order=[a,b]"), tmp_path / "model")
    with pytest.raises(InvalidInputError, match="other names"):
        update(tmp_path / "model", stores["other"], tmp_path / "updated", where="label in c, d")
    assert update(tmp_path / "model", stores["own"], tmp_path / "updated", where="label in c, d")["num_tasks"] == 2
