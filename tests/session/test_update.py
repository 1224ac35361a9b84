"""A model goes on: a chain of updates is the run on the whole stream, bit for bit, however it was disturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session.run import run
from ecgl_scale.session.update import update
from ecgl_scale.store.graph import GraphStore
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, read_json, write_store

YEARS = ("tasks.kind=time", "tasks.column=year", FEW_EPOCHS)
NUMBERS = ("aa", "af", "matrix", "aa_micro", "matrix_micro", "final_losses", "num_epochs", "split_hash", "num_tasks")


@pytest.fixture(scope="module")
def first_year(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same graph before anybody knew the labels of later years."""
    early = replace(drawn, y=np.where(drawn.year == 2000, drawn.y, -1))
    return write_store(tmp_path_factory.mktemp("early") / "graph.ecgl", early)


def chain(first: Path, store: Path, out: Path, *overrides: str) -> Path:
    """A run on the first year, and an update for each of the others, as versions of one model."""
    run(config_of(first, None, *overrides), out)
    for year in (2001, 2002):
        update(out, store, out, where=f"year == {year}")
    return out / "versions" / "0002"


def check_same(found: Path, wanted: Path) -> None:
    results, whole = (read_json(path / "results.json") for path in (found, wanted))
    names = [*NUMBERS, *(name for name in whole if name.endswith("_seen"))]
    assert {name: results[name] for name in names} == {name: whole[name] for name in names}
    assert read_json(found / "state.json")["losses"] == read_json(wanted / "state.json")["losses"]
    for arrays, others in zip(tensors_of(found), tensors_of(wanted), strict=True):
        assert arrays.keys() == others.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, others[key])
    assert (found / "bank.arrow").exists() == (wanted / "bank.arrow").exists()
    if (wanted / "bank.arrow").exists():
        assert (found / "bank.arrow").read_bytes() == (wanted / "bank.arrow").read_bytes()


def tensors_of(run: Path) -> list[dict[str, Any]]:
    """The weights, with the optimizer's moments too, and the method's state."""
    paths = [run / "weights" / read_json(run / "state.json")["checkpoint"], run / "weights" / "model.safetensors"]
    last = read_json(run / "results.json")["num_tasks"] - 1
    of_method = run / "weights" / f"method-{last}.safetensors"
    return [load_tensors(path)[0] for path in (*paths, *([of_method] if of_method.exists() else []))]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("setting=task-il", "preset=paper"),
        ("method=ewc",),
        ("method=lwf",),
        ("method=gem",),
        ("method=cat",),
        ("method=joint",),
        ("learn.scale=standard", "tasks.inter_task_edges=true"),
    ],
    ids=" ".join,
)
def test_a_chain_of_updates_is_the_run_on_the_whole_stream(
    first_year: Path, store: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run(config_of(store, None, *YEARS, *overrides), tmp_path / "whole")
    check_same(chain(first_year, store, tmp_path / "model", *YEARS, *overrides), tmp_path / "whole")


CLASSES = (FEW_EPOCHS, "tasks.classes_per_task=2")


def chain_of_classes(store: Path, out: Path, *overrides: str, options: tuple[str, ...] = ()) -> Path:
    """A run on the first two classes, and an update for each further pair, each into a directory of its own."""
    run(config_of(store, None, *CLASSES, *overrides, "tasks.class_order=[0, 1]"), out / "0")
    for number, pair in enumerate(("2, 3", "4, 5")):
        update(out / str(number), store, out / str(number + 1), where=f"label in {pair}", overrides=options)
    return out / "2"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("setting=task-il",),
        ("method=ewc",),
        ("method=lwf", "setting=task-il"),
        ("method=gem",),
        ("method=cat",),
        ("method=joint",),
        ("method=twp", "preset=paper"),
        ("method=ergnn",),
        ("learn.train_as=gcn", "tasks.eval_scope=both"),
        ("learn.features=propagated:2", "learn.optimizer=reset"),
    ],
    ids=" ".join,
)
def test_new_classes_are_learned_as_the_run_on_the_whole_stream_learns_them(
    store: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run(config_of(store, None, *CLASSES, *overrides), tmp_path / "whole")
    check_same(chain_of_classes(store, tmp_path, *overrides), tmp_path / "whole")


def test_sparse_features_and_graphs_that_are_kept_give_the_same(drawn: Drawn, tmp_path: Path) -> None:
    x = np.where(drawn.x > 3.5, drawn.x, 0).astype(np.float32)
    store = write_store(tmp_path / "sparse.ecgl", drawn, x=x)
    assert GraphStore.open(store).has_sparse_features
    run(config_of(store, None, *CLASSES, "method=joint", "tasks.eval_scope=task"), tmp_path / "whole")
    kept = chain_of_classes(store, tmp_path, "method=joint", "tasks.keep_tests=true")
    check_same(kept, tmp_path / "whole")
    assert [path.name for path in sorted((kept / "tests").iterdir())] == [f"task-{i:04d}.ecgl" for i in range(3)]
    assert not (kept / "tasks").exists()


@pytest.mark.parametrize("method", ["ecgl", "joint"])
def test_kept_graphs_are_enough_where_old_data_has_gone(
    drawn: Drawn, first_year: Path, store: Path, tmp_path: Path, method: str
) -> None:
    is_old = drawn.year == 2000
    x = np.where(is_old[:, None], 0, drawn.x).astype(np.float32)
    edges = drawn.edge_index[:, ~is_old[drawn.edge_index].any(axis=0)]
    gone = write_store(tmp_path / "gone.ecgl", replace(drawn, edge_index=edges, x=x, y=np.where(is_old, -1, drawn.y)))
    overrides = (*YEARS, f"method={method}", "tasks.eval_scope=task")
    run(config_of(store, None, *overrides), tmp_path / "whole")
    check_same(chain(first_year, gone, tmp_path / "model", *overrides, "tasks.keep_tests=true"), tmp_path / "whole")
