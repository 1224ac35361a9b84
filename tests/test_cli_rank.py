"""``ecgl rank`` from the command line: scores in Parquet, a report in JSON, and each way to ask wrongly."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.lock import take_lock
from ecgl_scale.rank import candidates
from ecgl_scale.tasks.split import write_split
from tests import naive
from tests.cli_runner import Result, run_cli

NUM_NODES, NUM_CLASSES = 300, 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features, labels and a split; some nodes have no class, some no edge."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("store") / "graph.ecgl"
    label = np.arange(NUM_NODES) % NUM_CLASSES
    label[:5] = -1
    GraphStore.from_edge_index(
        rng.integers(0, NUM_NODES - 20, (2, 1500)),
        rng.normal(size=(NUM_NODES, 6)).astype(np.float32),
        label,
        path,
        columns={"split": np.arange(NUM_NODES) % 4 - 1},
    )
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edges and nothing else."""
    path = tmp_path_factory.mktemp("bare") / "graph.ecgl"
    GraphStore.from_edge_index(np.array([[0, 1, 2, 2], [1, 2, 0, 3]]), path=path, num_nodes=4)
    return path


def rank(store: Path, out: Path, *options: object) -> Result:
    result = run_cli("rank", store, "--out", out, *options)
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith(".")) == []
    return result


def columns(path: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


# --- what it does


def test_importance_goes_to_a_parquet_file_with_every_node(store: Path, tmp_path: Path) -> None:
    result = rank(store, tmp_path / "scores.parquet")
    assert result.code == 0, result.stderr
    found = columns(tmp_path / "scores.parquet")
    assert [*found] == ["node", "importance"]
    assert found["node"].tolist() == [*range(NUM_NODES)]
    assert abs(found["importance"].sum() - 1) < 1e-12
    assert result.stdout.startswith(f"{tmp_path / 'scores.parquet'}: 300 nodes, peak memory ")
    assert re.search(r"importance: \d+ sweeps, residual .*, converged", result.stdout)


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ([], ["attributes", "importance", "write"]),
        (["--ignore-features"], ["importance", "write"]),
        (["--kind", "diversity"], ["diversity", "write"]),
        (["--kind", "both", "--topk", 10], ["attributes", "importance", "diversity", "write"]),
    ],
)
def test_the_plan_stands_beside_what_was_measured(
    store: Path, tmp_path: Path, options: list[object], stages: list[str]
) -> None:
    result = rank(store, tmp_path / "s.parquet", *options, "--memory", "64GiB", "--json")
    report = json.loads(result.stdout)
    plan = report["plan"]
    assert [stage["stage"] for stage in plan["stages"]] == stages
    assert (plan["budget_bytes"], plan["budget_from"], plan["fits"]) == (64 * 2**30, "--memory", True)
    assert plan["peak_bytes"] == plan["held_bytes"] + max(stage["host_bytes"] for stage in plan["stages"])
    assert 0 < report["peak_bytes"] <= 1.1 * plan["peak_bytes"]
    assert re.search(r"plan: peak .* within the budget of 64 GiB from --memory", result.stderr)


def test_the_plan_is_said_unless_nobody_wants_to_hear(store: Path, tmp_path: Path) -> None:
    assert " planned" in rank(store, tmp_path / "s.parquet").stdout
    quiet = run_cli("--quiet", "rank", store, "--out", tmp_path / "s.parquet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_without_features_importance_is_plain_pagerank(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    assert rank(store, out, "--ignore-features", "--tol", 1e-12, "--max-iter", 300, "--damping", 0.7).code == 0
    edges = [*zip(*GraphStore.open(store).to_edge_index().tolist(), strict=True)]
    np.testing.assert_allclose(columns(out)["importance"], naive.pagerank(edges, NUM_NODES, damping=0.7), atol=1e-11)


def test_features_decide_where_restarts_go(store: Path, tmp_path: Path) -> None:
    found = {}
    for name, options in {
        "plain": ["--ignore-features"],
        "features": [],
        "narrow": ["--gamma", 0.5],
        "reset": ["--dangling", "reset"],
    }.items():
        assert rank(store, tmp_path / name, *options).code == 0
        found[name] = columns(tmp_path / name)["importance"]
    names = [*found]
    for i, name in enumerate(names):
        for other in names[:i]:
            assert abs(found[name] - found[other]).sum() > 1e-6, (name, other)


@pytest.mark.parametrize("include_self", [False, True])
def test_diversity_is_the_distance_to_the_mean_of_the_neighbours(
    store: Path, tmp_path: Path, include_self: bool
) -> None:
    out = tmp_path / "s.parquet"
    assert rank(store, out, "--kind", "diversity", *(["--include-self"] if include_self else [])).code == 0
    found = columns(out)
    assert [*found] == ["node", "diversity"]
    graph = GraphStore.open(store)
    assert graph.features is not None
    x = graph.features.rows(np.arange(NUM_NODES)).astype(np.float64)
    for node in range(NUM_NODES):
        neighbours = [*graph.edges.in_neighbours(node).tolist(), *([node] if include_self else [])]
        mean = x[neighbours].mean(axis=0) if neighbours else np.zeros(6)
        assert abs(found["diversity"][node] - np.linalg.norm(x[node] - mean)) < 1e-5


def test_both_are_in_one_file_and_equal_each_alone(store: Path, tmp_path: Path) -> None:
    for kind in ("importance", "diversity", "both"):
        assert rank(store, tmp_path / kind, "--kind", kind).code == 0
    both = columns(tmp_path / "both")
    assert [*both] == ["node", "importance", "diversity"]
    for kind in ("importance", "diversity"):
        assert both[kind].tobytes() == columns(tmp_path / kind)[kind].tobytes()


def best(values: np.ndarray, among: np.ndarray, k: int) -> list[int]:
    return sorted(sorted(among.tolist(), key=lambda node: (-values[node], node))[:k])


def test_topk_writes_the_best_in_node_order(store: Path, tmp_path: Path) -> None:
    assert rank(store, tmp_path / "all").code == 0
    assert rank(store, tmp_path / "top", "--topk", 17).code == 0
    every, top = columns(tmp_path / "all"), columns(tmp_path / "top")
    assert top["node"].tolist() == best(every["importance"], every["node"], 17)
    assert top["importance"].tolist() == every["importance"][top["node"]].tolist()


def test_topk_of_both_is_the_best_by_each(store: Path, tmp_path: Path) -> None:
    assert rank(store, tmp_path / "all", "--kind", "both").code == 0
    assert rank(store, tmp_path / "top", "--kind", "both", "--topk", 10).code == 0
    every, top = columns(tmp_path / "all"), columns(tmp_path / "top")
    wanted = {node for kind in ("importance", "diversity") for node in best(every[kind], every["node"], 10)}
    assert top["node"].tolist() == sorted(wanted)


def test_candidates_are_the_only_ones_chosen(store: Path, tmp_path: Path) -> None:
    assert rank(store, tmp_path / "all").code == 0
    every = columns(tmp_path / "all")
    split = GraphStore.open(store).column("split")
    for value in (0, -1):
        assert rank(store, tmp_path / "top", "--topk", 9, "--candidates", f"split={value}").code == 0
        wanted = best(every["importance"], np.flatnonzero(split == value), 9)
        assert columns(tmp_path / "top")["node"].tolist() == wanted


def test_candidates_that_nobody_is_give_an_empty_file(store: Path, tmp_path: Path) -> None:
    assert rank(store, tmp_path / "top", "--topk", 9, "--candidates", "split=77").code == 0
    assert columns(tmp_path / "top")["node"].size == 0


def test_a_quota_gives_every_class_its_share(store: Path, tmp_path: Path) -> None:
    result = rank(store, tmp_path / "top", "--topk", 30, "--quota", "class", "--json")
    assert json.loads(result.stdout)["num_written"] == 30
    labels = GraphStore.open(store).column("label")[columns(tmp_path / "top")["node"]]
    assert np.bincount(labels, minlength=NUM_CLASSES).tolist() == [10, 10, 10]


def test_a_start_near_the_end_needs_few_sweeps(store: Path, tmp_path: Path) -> None:
    first = json.loads(rank(store, tmp_path / "first", "--tol", 1e-12, "--max-iter", 300, "--json").stdout)
    again = json.loads(rank(store, tmp_path / "again", "--start", tmp_path / "first", "--json").stdout)
    assert again["importance"]["iterations"] <= 2 < first["importance"]["iterations"]
    np.testing.assert_allclose(
        columns(tmp_path / "again")["importance"], columns(tmp_path / "first")["importance"], atol=1e-10
    )


def test_the_report_has_every_field_a_script_needs(store: Path, tmp_path: Path) -> None:
    found = json.loads(rank(store, tmp_path / "s.parquet", "--kind", "both", "--json").stdout)
    assert found.keys() >= {"store", "out", "num_nodes", "num_edges", "kind", "seconds", "peak_bytes", "num_written"}
    assert (found["num_nodes"], found["num_edges"], found["num_written"]) == (300, 1500, 300)
    importance = found["importance"]
    assert importance.keys() >= {"iterations", "residual", "seconds_per_sweep", "edges_per_second", "read_bytes"}
    assert (importance["converged"], importance["resumed_from"]) == (True, 0)
    assert importance["iterations"] == len(importance["sweeps"])
    assert importance["residual"] < 1e-8
    assert importance["edges_per_second"] == pytest.approx(1500 / importance["seconds_per_sweep"])
    assert found["diversity"].keys() >= {"passes", "read_bytes", "seconds"}
    assert found["seconds"].keys() == {"attributes", "importance", "diversity", "write"}
    assert found["peak_bytes"] > 10_000_000


def test_too_few_sweeps_are_told_but_written(store: Path, tmp_path: Path) -> None:
    result = rank(store, tmp_path / "s.parquet", "--max-iter", 2, "--norm", "l2")
    assert result.code == 0
    assert "2 sweeps" in result.stdout
    assert "NOT converged; raise --max-iter or --tol" in result.stdout


def test_quiet_says_nothing(store: Path, tmp_path: Path) -> None:
    result = run_cli("--quiet", "rank", store, "--out", tmp_path / "s.parquet")
    assert (result.code, result.stdout, result.stderr) == (0, "", "")


def test_a_store_without_features_is_ranked_by_its_edges_and_told_so(bare: Path, tmp_path: Path) -> None:
    result = rank(bare, tmp_path / "s.parquet")
    assert result.code == 0
    assert "no features" in result.stderr
    edges = [(0, 1), (1, 2), (2, 0), (2, 3)]
    np.testing.assert_allclose(columns(tmp_path / "s.parquet")["importance"], naive.pagerank(edges, 4), atol=1e-8)


def test_threads_and_memory_change_no_bit(store: Path, tmp_path: Path) -> None:
    for name, options in {"a": ["--threads", 1], "b": ["--threads", 2], "c": ["--memory", "2GiB"]}.items():
        assert rank(store, tmp_path / name, "--kind", "both", *options).code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_other_features_take_the_place_of_the_stores(store: Path, bare: Path, tmp_path: Path) -> None:
    stored = GraphStore.open(store).features
    assert stored is not None
    x = np.asarray(stored.rows(np.arange(NUM_NODES)))
    rng = np.random.default_rng(3)
    np.save(tmp_path / "same.npy", x)
    np.save(tmp_path / "wide.npy", x.astype(np.float64))
    np.save(tmp_path / "columns.npy", np.asfortranarray(x))
    np.save(tmp_path / "swapped.npy", x.astype(">f4"))
    np.save(tmp_path / "other.npy", rng.normal(size=(NUM_NODES, 2)).astype(np.float16))
    assert rank(store, tmp_path / "own", "--kind", "both").code == 0
    own = columns(tmp_path / "own")
    for name in ("same", "wide", "columns", "swapped"):
        result = rank(store, tmp_path / name, "--kind", "both", "--features", tmp_path / f"{name}.npy")
        assert result.code == 0, result.stderr
        for kind in ("importance", "diversity"):
            np.testing.assert_allclose(columns(tmp_path / name)[kind], own[kind], rtol=1e-6)
    assert rank(store, tmp_path / "o", "--kind", "both", "--features", tmp_path / "other.npy").code == 0
    other = columns(tmp_path / "o")
    assert abs(other["importance"] - own["importance"]).sum() > 1e-6
    assert abs(other["diversity"] - own["diversity"]).sum() > 1e-6
    np.save(tmp_path / "four.npy", np.arange(8.0).reshape(4, 2))
    assert rank(bare, tmp_path / "b", "--kind", "both", "--features", tmp_path / "four.npy").code == 0


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros((NUM_NODES - 1, 3), np.float32), f"({NUM_NODES - 1}, 3)"),
        (np.zeros(NUM_NODES, np.float32), f"({NUM_NODES},)"),
        (np.zeros((NUM_NODES, 0), np.float32), f"({NUM_NODES}, 0)"),
        (np.zeros((NUM_NODES, 3), np.int64), "int64"),
        (np.zeros((NUM_NODES, 3), np.complex64), "complex64"),
        (np.full((NUM_NODES, 3), np.nan, np.float32), "row 0"),
        (np.full((NUM_NODES, 3), 1e300), "row 0"),
        (np.full((NUM_NODES, 3), None), "pickled"),
    ],
)
def test_features_that_do_not_fit_are_exit_3(store: Path, tmp_path: Path, array: np.ndarray, named: str) -> None:
    np.save(tmp_path / "x.npy", array)
    for kind in ("importance", "diversity"):
        result = rank(store, tmp_path / "s.parquet", "--kind", kind, "--features", tmp_path / "x.npy")
        assert (result.code, result.stdout) == (3, ""), result.stderr
        assert named in result.stderr
        assert "x.npy" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_candidates_may_come_in_a_file(store: Path, tmp_path: Path) -> None:
    ids = np.flatnonzero(GraphStore.open(store).column("split") == 0)
    assert rank(store, tmp_path / "column", "--topk", 9, "--candidates", "split=0").code == 0
    np.save(tmp_path / "ids.npy", ids[::-1].astype(np.uint16))
    pq.write_table(pa.table({"node": ids, "why": ids}), tmp_path / "a=b.parquet")
    head = {"tasks": [], "seed": 0}
    parts = [(np.arange(NUM_NODES), (np.arange(NUM_NODES) % 4 - 1).astype(np.int8))] * 2
    write_split(tmp_path / "split.parquet", head, parts)
    for name in ("ids.npy", "a=b.parquet", "split.parquet"):
        result = rank(store, tmp_path / "top", "--topk", 9, "--candidates", tmp_path / name)
        assert result.code == 0, result.stderr
        assert (tmp_path / "top").read_bytes() == (tmp_path / "column").read_bytes()


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([0, NUM_NODES], f"candidate {NUM_NODES} is no node"),
        ([0, -1], "candidate -1 is no node"),
        ([4, 5, 4], "candidate 4 is there twice"),
        ([[4, 5]], "shape (1, 2)"),
        ([4.0], "float64"),
    ],
)
def test_candidates_that_are_no_nodes_or_come_twice_are_exit_3(
    store: Path, tmp_path: Path, ids: list[Any], named: str
) -> None:
    np.save(tmp_path / "ids.npy", np.array(ids))
    names = ["ids.npy"]
    if np.ndim(ids) == 1 and named != "float64":
        pq.write_table(pa.table({"node": ids}), tmp_path / "ids.parquet")
        names.append("ids.parquet")
    for name in names:
        result = rank(store, tmp_path / "s.parquet", "--topk", 3, "--candidates", tmp_path / name)
        assert (result.code, result.stdout) == (3, ""), result.stderr
        assert named in result.stderr
        assert name in result.stderr
    assert not (tmp_path / "s.parquet").exists()


def test_a_candidate_of_a_later_block_may_not_come_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "BLOCK_IDS", 2)
    np.save(tmp_path / "ids.npy", np.array([7, 8, 9, 7]))
    result = rank(store, tmp_path / "s.parquet", "--topk", 3, "--candidates", tmp_path / "ids.npy")
    assert (result.code, "candidate 7 is there twice" in result.stderr) == (3, True)


@pytest.mark.parametrize("table", [{"id": [1]}, {"node": ["1"]}, {"node": [1, None]}])
def test_a_table_without_node_ids_is_exit_3(store: Path, tmp_path: Path, table: dict[str, list[Any]]) -> None:
    pq.write_table(pa.table(table), tmp_path / "ids.parquet")
    result = rank(store, tmp_path / "s.parquet", "--topk", 3, "--candidates", tmp_path / "ids.parquet")
    assert (result.code, result.stdout) == (3, "")
    assert "node" in result.stderr
    (tmp_path / "ids.parquet").write_bytes(b"PAR1 and then nothing")
    result = rank(store, tmp_path / "s.parquet", "--topk", 3, "--candidates", tmp_path / "ids.parquet")
    assert (result.code, "ids.parquet" in result.stderr) == (3, True)


# --- what it refuses


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--quota", "class"), 2, "give --topk"),
        (("--candidates", "split=0"), 2, "give --topk"),
        (("--topk", 0), 2, "topk is 0"),
        (("--topk", 5, "--candidates", "split"), 2, "'split' names no candidates"),
        (("--topk", 5, "--candidates", "=0"), 2, "'=0' names no candidates"),
        (("--topk", 5, "--candidates", "split=x"), 2, "'split=x' names no candidates"),
        (("--topk", 5, "--candidates", "split=--1"), 2, "'split=--1' names no candidates"),
        (("--topk", 5, "--candidates", "split=²"), 2, "names no candidates"),
        (("--topk", 5, "--candidates", "year=0"), 2, "no node column 'year'"),
        (("--damping", 1), 2, "damping is 1.0"),
        (("--damping", "nan"), 2, "damping is nan"),
        (("--tol", -1), 2, "tol is -1.0"),
        (("--tol", "nan"), 2, "tol is nan"),
        (("--max-iter", 0), 2, "max_iter is 0"),
        (("--kind", "fame"), 2, "fame"),
        (("--norm", "l3"), 2, "l3"),
        (("--dangling", "nowhere"), 2, "nowhere"),
        (("--gamma", -1), 2, "gamma"),
        (("--gamma", "nan"), 2, "gamma is nan"),
        (("--gamma", 0.5, "--ignore-features"), 2, "leave --gamma out"),
        (("--features", "x.npy", "--ignore-features"), 2, "--features or --ignore-features"),
        (("--features", "nothing.npy"), 3, "nothing.npy"),
        (("--topk", 5, "--candidates", "nothing.npy"), 3, "nothing.npy"),
        (("--topk", 5, "--candidates", "nothing.parquet"), 3, "nothing.parquet"),
        (("--threads", 0), 2, "threads"),
        (("--memory", "much"), 2, "much"),
        (("--memory", "1MiB"), 4, "--memory"),
        (("--memory", "1MiB", "--kind", "diversity"), 4, "--memory"),
        (("--start", "nothing.parquet"), 3, "nothing.parquet"),
        (("--kind", "diversity", "--damping", 0.9), 2, "--damping, --tol"),
        (("--kind", "diversity", "--gamma", 0.5), 2, "--gamma changes nothing in a ranking by diversity"),
        (("--kind", "diversity", "--start", "any.parquet"), 2, "--start changes nothing"),
        (("--kind", "diversity", "--ignore-features"), 2, "--ignore-features changes nothing"),
        (("--include-self",), 2, "--include-self changes nothing in a ranking by importance"),
    ],
)
def test_a_wrong_request_is_refused_with_its_code_and_leaves_nothing(
    store: Path, tmp_path: Path, options: tuple[object, ...], code: int, named: str
) -> None:
    result = rank(store, tmp_path / "s.parquet", *options)
    assert (result.code, result.stdout) == (code, ""), result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    result = rank(tmp_path / "none.ecgl", tmp_path / "s.parquet")
    assert result.code == 3
    assert "none.ecgl" in result.stderr


@pytest.mark.parametrize("kind", ["diversity", "both"])
def test_diversity_without_features_is_exit_2(bare: Path, tmp_path: Path, kind: str) -> None:
    result = rank(bare, tmp_path / "s.parquet", "--kind", kind)
    assert result.code == 2
    assert "no features" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [("--quota", "class"), ("--candidates", "split=0")])
def test_a_store_without_the_column_is_exit_2(bare: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    result = rank(bare, tmp_path / "s.parquet", "--topk", 2, *options)
    assert result.code == 2
    assert "no node column" in result.stderr
    assert "expected: a store with node columns; this one has none" in result.stderr


def test_gamma_without_features_is_exit_2(bare: Path, tmp_path: Path) -> None:
    result = rank(bare, tmp_path / "s.parquet", "--gamma", 0.5)
    assert (result.code, result.stdout) == (2, "")
    assert "leave --gamma out" in result.stderr


def test_a_file_that_cannot_be_written_is_exit_3_before_any_work(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "file" / "s.parquet", tmp_path / "missing" / "s.parquet", tmp_path / "folder", Path()):
        result = run_cli("rank", store, "--out", out)
        assert result.code == 3, (out, result.stderr)
        assert "sweeps" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_the_store_itself_is_no_place_for_scores(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for out in (store / "manifest.json", store / "scores.parquet", store):
        result = run_cli("rank", store, "--out", out)
        assert (result.code, result.stdout) == (3, ""), result.stderr
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_pipe_stays_a_pipe_and_a_link_a_link(store: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert rank(store, tmp_path / "pipe").code == 3
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "s.parquet").write_text("old")
    (tmp_path / "link").symlink_to("there/s.parquet")
    assert rank(store, tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert columns(tmp_path / "there" / "s.parquet")["node"].size == NUM_NODES
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["s.parquet"]


def test_a_second_ranking_to_the_same_file_is_refused_and_told_who_is_there(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    (tmp_path / "link").symlink_to(out)
    lock = take_lock(tmp_path / ".s.parquet.lock", target=out)
    for name in ("s.parquet", "link"):
        result = run_cli("rank", store, "--out", tmp_path / name)
        assert (result.code, result.stdout) == (3, "")
        assert "another process is writing this target" in result.stderr
        assert f'"pid": {os.getpid()}' in result.stderr
    assert not out.exists()
    os.close(lock)  # as when its holder is killed: the file of the lock stays, and keeps nobody out
    assert rank(store, out).code == 0


def test_the_chosen_of_an_earlier_ranking_are_no_start(store: Path, tmp_path: Path) -> None:
    assert rank(store, tmp_path / "top", "--topk", 5).code == 0
    result = rank(store, tmp_path / "s.parquet", "--start", tmp_path / "top")
    assert result.code == 3
    assert "scores of 5 nodes" in result.stderr


def test_a_start_that_cannot_be_used_is_refused_before_any_work(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecgl_scale.rank.ranking.attribute_vector", None)
    nodes = pa.array(range(NUM_NODES))
    for name, columns_of, said in (
        ("other", {"node": nodes, "diversity": nodes}, "the file has no column importance"),
        ("whole", {"node": nodes, "importance": nodes}, "column importance is int64"),
    ):
        pq.write_table(pa.table(columns_of), tmp_path / name)
        result = rank(store, tmp_path / "s.parquet", "--start", tmp_path / name)
        assert result.code == 3, result.stderr
        assert said in result.stderr


def test_a_refused_budget_names_one_that_works(store: Path, tmp_path: Path) -> None:
    refused = run_cli("rank", store, "--out", tmp_path / "s.parquet", "--memory", "1MiB", "--ignore-features")
    size = re.search(r"--memory (\d+)MiB", refused.stderr)
    assert size is not None
    assert rank(store, tmp_path / "s.parquet", "--memory", f"{size[1]}MiB", "--ignore-features").code == 0
