"""What a model forgets is in none of its files any more, and all else goes on as it was."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_matrix

from ecgl_scale import ECGL, GraphStore, TaskStream
from ecgl_scale.errors import InvalidInputError, LockedError, StoreExistsError, UsageError
from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.directory import LOCK_NAME
from ecgl_scale.session.forget import forget
from ecgl_scale.session.forget_nodes import Asked
from ecgl_scale.session.infer import infer_store
from ecgl_scale.session.run import run
from ecgl_scale.session.update import update
from ecgl_scale.store.build import build_store
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.store.sources.arrays import array_source
from tests.faults.running import run_cli
from tests.resources import at
from tests.session.model_contents import all_bytes, floats_of, ids_of
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, draw_graph, read_json, write_store

FIRST_KEY = 990_000_000_000_000
SOME = np.arange(0, 900, 7)
"""Nodes of all tasks, parts and classes."""
KEPT = ("tasks.keep_tests=true", FEW_EPOCHS)


@pytest.fixture(scope="module")
def marked() -> Drawn:
    """A graph in which every number of every row is told from all others, in float16 too where that has room."""
    drawn = draw_graph()
    return replace(drawn, x=(drawn.x + np.arange(drawn.x.size).reshape(drawn.x.shape) * 1e-4).astype(np.float32))


@pytest.fixture(scope="module")
def marked_store(marked: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("marked") / "graph.ecgl", marked)


@pytest.fixture(scope="module")
def trained(marked_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with three tasks, which keeps its test graphs; nobody changes it."""
    out = tmp_path_factory.mktemp("trained") / "model"
    run(config_of(marked_store, None, *KEPT), out)
    return out


def copy_of(model: Path, folder: Path) -> Path:
    return Path(shutil.copytree(model, folder / "model"))


def has_any_row(model: Path, drawn: Drawn, nodes: Any) -> bool:
    """Whether neighbouring numbers of a row of these nodes are anywhere in the bytes, or two of it in any arrays."""
    raw, numbers = all_bytes(model), floats_of(model)
    for node in np.asarray(nodes).tolist():
        row = drawn.x[node]
        forms = (row.tobytes()[:8], row.astype(np.float16).tobytes()[:8], repr(float(row[0])).encode())
        if any(form in raw for form in forms) or len(set(row.astype(np.float64).tolist()) & numbers) > 1:
            return True
    return False


def check_forgotten(model: Path, drawn: Drawn, nodes: Any) -> None:
    gone = set(np.asarray(nodes).tolist())
    assert {name: ids & gone for name, ids in ids_of(model).items() if ids & gone} == {}
    assert not has_any_row(model, drawn, nodes)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("method=ssm", "learn.train_as=gcn", "ssm.neighbours=[2]"),
        ("method=gem",),
        ("method=cat", "cat.steps=3"),
        ("method=continualgnn",),
        ("method=dygrain", "bank.budget=30"),
        ("method=ergnn",),
        ("method=lwf", "setting=task-il"),
        ("method=ewc",),
        ("method=joint",),
    ],
    ids=" ".join,
)
def test_rows_and_ids_of_forgotten_nodes_are_in_no_file_and_the_model_learns_on(
    marked: Drawn, marked_store: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    first = write_store(tmp_path / "early.ecgl", replace(marked, y=np.where(marked.year == 2002, -1, marked.y)))
    years = ("tasks.kind=time", "tasks.column=year", *KEPT)
    run(config_of(first, None, *years, *overrides), tmp_path / "model")
    known = set().union(*ids_of(tmp_path / "model").values())
    assert has_any_row(tmp_path / "model", marked, SOME)
    assert known & set(SOME.tolist())
    found = forget(tmp_path / "model", tmp_path / "after", Asked(SOME))
    check_forgotten(tmp_path / "after", marked, SOME)
    assert found["num_asked"] == SOME.size
    assert found["num_known"] == np.count_nonzero(marked.year[SOME] < 2002)
    assert found["rows"]["split.parquet"] == found["num_known"]
    Basis.open(tmp_path / "after")
    results = update(tmp_path / "after", marked_store, tmp_path / "updated", where="year == 2002")
    assert results["num_tasks"] == 3
    assert np.isfinite(results["aa"])
    assert read_json(tmp_path / "updated" / "forgotten.json")["requests"][0]["num_asked"] == SOME.size
    earlier = pq.read_table(tmp_path / "updated" / "split.parquet", filters=[("task", "<", 2)])["node"].to_numpy()
    assert not np.isin(earlier, SOME).any()


def test_forgetting_nodes_leaves_weights_and_predictions_as_they_were(
    trained: Path, marked_store: Path, tmp_path: Path
) -> None:
    forget(trained, tmp_path / "after", Asked(SOME))
    before, after = (load_tensors(path / "weights/model.safetensors")[0] for path in (trained, tmp_path / "after"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    for model in (trained, tmp_path / "after"):
        infer_store(model, marked_store, tmp_path / f"{model.name}.parquet")
    assert pq.read_table(tmp_path / "after.parquet").equals(pq.read_table(tmp_path / "model.parquet"))


def test_a_kept_graph_without_nodes_is_the_graph_that_the_store_would_give(
    trained: Path, marked: Drawn, marked_store: Path, tmp_path: Path
) -> None:
    from ecgl_scale.tasks.graphs import extract_graph
    from tests.resources import at

    forget(trained, tmp_path / "after", Asked(SOME))
    kept = GraphStore.open(tmp_path / "after" / "tests" / "task-0001.ecgl")
    ids = kept.column("node")
    assert np.array_equal(ids, np.setdiff1d(np.flatnonzero(np.isin(marked.y, (2, 3))), SOME))
    wanted = extract_graph(GraphStore.open(marked_store), ids, tmp_path / "wanted.ecgl", at())
    files = [read_json(graph.path / "manifest.json")["files"] for graph in (kept, wanted)]
    assert files[0] == files[1]


def test_a_forgotten_class_has_no_rows_and_no_output_and_is_never_predicted(
    trained: Path, marked: Drawn, marked_store: Path, tmp_path: Path
) -> None:
    found = forget(trained, tmp_path / "after", Asked(class_name="3"))
    check_forgotten(tmp_path / "after", marked, np.flatnonzero(marked.y == 3))
    assert found["num_known"] == np.count_nonzero(marked.y == 3)
    assert found["rows"]["bank.arrow"] > 0
    tensors = load_tensors(tmp_path / "after" / "weights" / "model.safetensors")[0]
    assert any(not array[3].any() for array in tensors.values() if len(array) == 6)
    before = infer_labels(trained, marked_store, tmp_path / "before.parquet")
    after = infer_labels(tmp_path / "after", marked_store, tmp_path / "after.parquet")
    assert (before == 3).any()
    assert not (after == 3).any()
    assert np.array_equal(after[before != 3], before[before != 3])
    assert ECGL.load(tmp_path / "after").classes_ == (0, 1, 2, 3, 4, 5)


def infer_labels(model: Path, store: Path, out: Path) -> Any:
    infer_store(model, store, out)
    return pq.read_table(out)["label"].to_numpy()


@pytest.mark.parametrize("method", ["ecgl", "ewc", "lwf", "gem", "ssm", "continualgnn", "joint"])
def test_a_class_that_comes_back_has_its_place_again_and_a_task_without_nodes_is_passed_over(
    marked: Drawn, marked_store: Path, tmp_path: Path, method: str
) -> None:
    few = replace(marked, y=np.where(np.arange(900) < 600, np.where(marked.y < 4, marked.y, -1), -1))
    first = write_store(tmp_path / "early.ecgl", few)
    model = tmp_path / "model"
    run(config_of(first, None, f"method={method}", FEW_EPOCHS), model)
    for label in (2, 3):  # all that task 1 has
        forget(model, model, Asked(class_name=str(label)))
    assert Basis.open(model).saved.more["forgotten_classes"] == [2, 3]
    results = update(model, marked_store, tmp_path / "updated", where="label in 3, 4")
    assert [task["classes"] for task in results["tasks"]] == [[0, 1], [], [3, 4]]
    assert results["matrix"][2][1] is None
    assert np.isfinite(results["aa"])
    saved = Basis.open(tmp_path / "updated").saved
    assert saved.classes == (0, 1, 2, 3, 4)
    assert saved.more["forgotten_classes"] == [2]
    assert 2 not in infer_labels(tmp_path / "updated", marked_store, tmp_path / "p.parquet")


def test_written_into_itself_a_model_gets_a_version_and_loses_the_older_ones(
    trained: Path, marked: Drawn, tmp_path: Path
) -> None:
    model = copy_of(trained, tmp_path)
    forget(model, model, Asked(SOME))
    assert sorted(path.name for path in model.iterdir()) == [LOCK_NAME, "versions"]
    check_forgotten(model, marked, SOME)
    found = forget(model, model, Asked(SOME))
    assert found["rows"] == {}
    assert found["num_removed_versions"] == 1
    assert [path.name for path in (model / "versions").iterdir()] == ["0002"]
    assert len(read_json(model / "versions" / "0002" / "forgotten.json")["requests"]) == 2
    more = np.arange(1, 900, 50)
    found = forget(model, model, Asked(more), keep_versions=True)
    assert any("still has them" in line for line in found["elsewhere"])
    assert sorted(path.name for path in (model / "versions").iterdir()) == ["0002", "0003"]
    with pytest.raises(UsageError, match="newest"):
        forget(Path(f"{model}@2"), model, Asked(more))
    check_forgotten(model / "versions" / "0003", marked, more)


def test_the_report_names_no_node_and_is_shown_again(trained: Path, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("\n".join(map(str, SOME)))
    ran = run_cli("forget", trained, "--nodes", nodes, "--out", tmp_path / "after", "--json")
    assert ran.code == 0, ran.stderr
    found = json.loads(ran.stdout)
    kept = read_json(tmp_path / "after" / "forgotten.json")["requests"][0]
    assert {name: found[name] for name in kept} == kept
    assert kept["num_asked"] == SOME.size
    assert "weights were trained on them" in kept["carries"][0]
    assert not kept["exact"]
    shown = run_cli("report", tmp_path / "after", "--json")
    assert json.loads(shown.stdout)["groups"][0]["forgotten"][0]["requests"] == [kept]
    assert "forgotten" in run_cli("report", tmp_path / "after").stdout


def test_nodes_are_named_by_key(marked: Drawn, tmp_path: Path) -> None:
    keys = FIRST_KEY + np.arange(900)
    np.savez(tmp_path / "graph.npz", edge_index=marked.edge_index, x=marked.x, y=marked.y, key=keys)
    store = tmp_path / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", tmp_path / "graph.npz", store, "--id-column", "key").code == 0
    run(config_of(store, None, *KEPT), tmp_path / "model")
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("\n".join(map(str, keys[SOME])))
    asked = ("--nodes", nodes, "--id", "--out", tmp_path / "model")
    ran = run_cli("forget", tmp_path / "model", *asked)
    assert ran.code == 0, ran.stderr
    assert str(FIRST_KEY)[:9] not in ran.stdout
    check_forgotten(tmp_path / "model", marked, SOME)
    raw = all_bytes(tmp_path / "model")
    assert not any(str(key).encode() in raw or key.tobytes() in raw for key in keys[SOME])
    nodes.write_text("17\n")
    ran = run_cli("forget", tmp_path / "model", *asked)
    assert ran.code == 3
    assert "nodes.txt" in ran.stderr
    store.rename(tmp_path / "moved.ecgl")
    assert run_cli("forget", tmp_path / "model", *asked).code == 3
    nodes.write_text(f"{keys[1]}\n")
    ran = run_cli("forget", tmp_path / "model", *asked, "--store", tmp_path / "moved.ecgl")
    assert ran.code == 0, ran.stderr


def test_row_numbers_need_no_store(marked: Drawn, tmp_path: Path) -> None:
    store = write_store(tmp_path / "graph.ecgl", marked)
    run(config_of(store, None, *KEPT), tmp_path / "model")
    shutil.rmtree(store)
    np.save(tmp_path / "nodes.npy", SOME)
    forget(tmp_path / "model", tmp_path / "after", Asked(tmp_path / "nodes.npy"))
    check_forgotten(tmp_path / "after", marked, SOME)
    np.save(tmp_path / "nodes.npy", np.array([3, 900]))
    with pytest.raises(InvalidInputError, match="900"):
        forget(tmp_path / "model", tmp_path / "again", Asked(tmp_path / "nodes.npy"))


def test_nodes_that_the_model_never_saw_are_forgotten_already(marked: Drawn, tmp_path: Path) -> None:
    store = write_store(tmp_path / "graph.ecgl", replace(marked, y=np.where(np.arange(900) < 850, marked.y, -1)))
    run(config_of(store, None, FEW_EPOCHS), tmp_path / "model")
    found = forget(tmp_path / "model", tmp_path / "after", Asked(np.arange(850, 900)))
    assert (found["num_asked"], found["num_known"], found["rows"], found["carries"]) == (50, 0, {}, [])


def test_ecgl_forgets_and_goes_on_with_the_stream_that_has_forgotten_the_same(
    marked: Drawn, marked_store: Path, tmp_path: Path
) -> None:
    graph = GraphStore.open(marked_store)
    tasks = TaskStream.class_incremental(graph, classes_per_task=2)
    work = tmp_path / "work"
    model = ECGL(hidden=[8], epochs=2, budget=30, directory=work, config={"tasks.keep_tests": True})
    model.fit_task(graph, tasks[0]).fit_task(graph, tasks[1])
    found = model.forget(nodes=SOME)
    assert found["rows"]["bank.arrow"]
    assert not np.isin(model.bank_.node_ids, SOME).any()
    assert not any(path.suffix == ".arrow" or path.name == "tests" for path in work.rglob("*"))
    left = tasks.without(graph, SOME)
    with pytest.raises(UsageError, match="cannot be learned now"):
        model.fit_task(graph, tasks[2])
    model.forget(label=3)
    left = left.without(graph, label=3)
    model.fit_task(graph, left[2])
    assert len(model.evaluate(graph, list(left))) == 3
    model.save(tmp_path / "saved")
    check_forgotten(tmp_path / "saved", marked, np.setdiff1d(np.flatnonzero(marked.y == 3), []))
    assert len(read_json(tmp_path / "saved" / "forgotten.json")["requests"]) == 2
    assert ECGL.load(tmp_path / "saved").classes_ == (0, 1, 2, 3, 4, 5)


def test_a_model_that_has_forgotten_is_not_resumed_as_a_run(trained: Path, marked_store: Path, tmp_path: Path) -> None:
    config = config_of(marked_store, None, *KEPT)
    forget(trained, tmp_path / "after", Asked(SOME))
    model = copy_of(trained, tmp_path)
    forget(model, model, Asked(SOME))
    for path in (tmp_path / "after", model):
        before = all_bytes(path)
        with pytest.raises(UsageError, match=r"has forgotten nodes or a class on request[\s\S]*ecgl update"):
            run(config, path, resume=True)
        assert all_bytes(path) == before
        assert run_cli("verify", path).code == 0


@pytest.mark.parametrize("kind", ["float16", "sparse"])
def test_rows_of_every_kind_leave_the_files(marked: Drawn, tmp_path: Path, kind: str) -> None:
    is_sparse = kind == "sparse"
    x = np.where(np.abs(marked.x) > 0.5, marked.x, 0) if is_sparse else marked.x.astype(np.float16)
    arrays: dict[str, Any] = {"x": csr_matrix(x) if is_sparse else x, "y": marked.y}
    how: dict[str, Any] = {"features_as": "sparse"} if is_sparse else {"feature_dtype": kind}
    store = tmp_path / "graph.ecgl"
    build_store(array_source(marked.edge_index, **arrays), store, at(), **how)
    run(config_of(store, None, *KEPT), tmp_path / "model")
    bank = Basis.open(tmp_path / "model").bank()
    assert isinstance(bank.rows, CsrBlock) == is_sparse
    assert is_sparse or bank.rows.dtype == np.float16
    rows = [row[row != 0].tobytes()[:8] for row in x[SOME]]
    before = all_bytes(tmp_path / "model")
    assert any(row in before for row in rows)
    forget(tmp_path / "model", tmp_path / "after", Asked(SOME))
    after = all_bytes(tmp_path / "after")
    assert not any(row in after for row in rows)
    gone = set(SOME.tolist())
    assert not any(ids & gone for ids in ids_of(tmp_path / "after").values())


# --- bad input


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--class", "17"], 2, "knows no class '17'"),
        (["--nodes", "nodes.txt"], 3, "nodes.txt"),
        (["--nodes", "none.txt"], 3, "none.txt"),
        (["--nodes", "nodes.txt", "--class", "1"], 2, "--nodes"),
        ([], 2, "--nodes"),
        (["--class", "1", "--id"], 2, "--id"),
        (["--class", "1", "--keep-versions"], 2, "--keep-versions"),
    ],
)
def test_what_cannot_be_forgotten_is_refused_and_nothing_is_written(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: int,
    message: str,
) -> None:
    (tmp_path / "nodes.txt").write_text("5\n900\n")
    monkeypatch.chdir(tmp_path)
    ran = run_cli("forget", trained, "--out", tmp_path / "after", *options)
    assert ran.code == code
    assert message in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes.txt"]


def test_a_model_that_is_damaged_or_not_finished_is_refused(trained: Path, tmp_path: Path) -> None:
    model = copy_of(trained, tmp_path)
    bank = bytearray((model / "bank.arrow").read_bytes())
    bank[-300] ^= 1
    (model / "bank.arrow").write_bytes(bank)
    with pytest.raises(InvalidInputError, match=r"bank\.arrow"):
        forget(model, tmp_path / "after", Asked(SOME))
    (model / "sealed.json").unlink()
    with pytest.raises(InvalidInputError, match="not finished"):
        forget(model, tmp_path / "after", Asked(SOME))
    assert not (tmp_path / "after").exists()


def test_a_place_that_is_taken_a_model_at_work_and_files_of_others_are_refused(trained: Path, tmp_path: Path) -> None:
    from ecgl_scale.base.lock import take_lock

    model = copy_of(trained, tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(StoreExistsError):
        forget(model, tmp_path / "taken", Asked(SOME))
    (model / "predictions.parquet").touch()
    with pytest.raises(InvalidInputError, match=r"predictions\.parquet"):
        forget(model, model, Asked(SOME))
    (model / "predictions.parquet").unlink()
    (model / "versions" / "0001").mkdir(parents=True)
    with pytest.raises(InvalidInputError, match="not finished"):
        forget(model, model, Asked(SOME))
    shutil.rmtree(model / "versions")
    lock = take_lock(model / LOCK_NAME, target=model)
    with pytest.raises(LockedError):
        forget(model, model, Asked(SOME))
    os.close(lock)
    assert sorted(path.name for path in model.iterdir()) == sorted(path.name for path in trained.iterdir())


def test_the_last_class_cannot_be_forgotten(marked: Drawn, tmp_path: Path) -> None:
    store = write_store(tmp_path / "graph.ecgl", replace(marked, y=np.where(marked.y < 2, marked.y, -1)))
    run(config_of(store, None, FEW_EPOCHS), tmp_path / "model")
    forget(tmp_path / "model", tmp_path / "model", Asked(class_name="0"))
    with pytest.raises(UsageError, match="only class"):
        forget(tmp_path / "model", tmp_path / "model", Asked(class_name="1"))
    assert [path.name for path in (tmp_path / "model" / "versions").iterdir()] == ["0001"]
