"""The benchmarks run, at sizes where they measure nothing, so that they cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import (
    build_budget,
    build_peers,
    build_scale,
    cluster,
    context,
    harness,
    pagerank,
    pagerank_peers,
    plan_peaks,
    plan_time,
)
from ecgl_scale import GraphStore


def test_build_scale_counts_what_it_builds(tmp_path: Path) -> None:
    result = build_scale.run(tmp_path, [8, 9], "1GiB", repeats=1)
    small, large = result["rows"]
    assert small["num_nodes"] == 256
    assert small["num_edges"] < large["num_edges"] <= 2 * 16 * 512
    assert 0 < small["peak_anon_bytes"] < result["budget_bytes"]
    assert small["written_bytes"] >= small["store_bytes"]
    assert isinstance(result["fitted_exponent"], float)
    assert not list(tmp_path.iterdir())


def test_all_builders_are_given_the_same_edges(tmp_path: Path) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    result = build_peers.run(tmp_path, 8, "4GiB", repeats=1)  # with what all tests before hold
    assert result["entries"]["dgl"] == 2 * result["raw_pairs"]
    # scipy sums duplicates but keeps loops; we drop both.
    assert result["entries"]["ecgl_scale"] < result["entries"]["scipy"] < result["entries"]["dgl"]
    assert set(result["times_faster_than"]) == {"scipy", "dgl"}


def test_the_budget_case_tells_kept_budgets_and_equal_bytes(tmp_path: Path) -> None:
    result = build_budget.run(tmp_path, 8, 4, ["512MiB", "1GiB"])
    assert [row["kept"] for row in result["rows"]] == [True, True]
    assert result["same_bytes_under_every_budget"]


@pytest.mark.usefixtures("warm_bench")
def test_the_pagerank_case_counts_sweeps_and_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagerank, "drop_page_cache", lambda: False)  # the machine's caches are not ours to empty here
    result = pagerank.run(tmp_path, [8, 9], [], sweeps=3, repeats=1)
    for row in result["rows"]:
        assert row["warm"]["seconds_per_sweep"]["n"] == 1
        assert row["warm"]["edges_per_second"] > 0
        assert row["cold"]["page_cache"] == "could not be dropped"
        assert set(row["times_faster_than_natural_order"]) == {"cold", "warm", "warm_float32"}
        assert row["build"]["none"]["source_order"] is None
    assert set(result["fitted_exponent"]) == {"warm", "cold"}
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("warm_bench")
def test_the_cluster_case_compares_workers_with_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="workers need Dask")
    monkeypatch.setattr(cluster, "drop_page_cache", lambda: False)
    result = cluster.run(tmp_path, [8], sweeps=2, repeats=1, network_scales=[])
    for cache in ("warm", "cold"):
        found = result["rows"][0][cache]
        assert found["same_bytes"]
        assert found["exchanged_bytes_per_sweep"] > 0
        assert found["times_slower"] == pytest.approx(
            found["seconds_per_sweep"]["workers"]["median"] / found["seconds_per_sweep"]["threads"]["median"]
        )
    assert not result["network"] or "left_out" in result["network"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("peer", ["scipy", "networkit", "scikit-network", "igraph"])
def test_every_pagerank_peer_runs(tmp_path: Path, peer: str) -> None:
    pytest.importorskip({"scikit-network": "sknetwork"}.get(peer, peer), reason="a peer of the benchmarks only")
    ring = np.arange(50)
    both = np.stack([np.r_[ring, (ring + 1) % 50], np.r_[(ring + 1) % 50, ring]])
    graph = GraphStore.from_edge_index(both, path=tmp_path / "ring.ecgl", num_nodes=50)
    found = pagerank_peers.PEERS[peer](graph, 2)
    assert all(isinstance(value, float) for value in found.values())
    assert ("seconds_to_solve" in found) == (peer == "igraph")


def test_planned_and_measured_peaks_of_every_stage_are_compared(tmp_path: Path) -> None:
    result = plan_peaks.run(tmp_path, [400], "2GiB", "1GiB", only="finetune")
    assert [row["stage"] for row in result["rows"]] == ["extract", "train", "remember", "evaluate"]
    for row in result["rows"]:
        assert row["ratio"] == row["peak_bytes"] / row["planned_bytes"]
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".yaml"]


@pytest.mark.usefixtures("warm_bench")
def test_the_context_case_compares_runs_with_context_and_without(tmp_path: Path) -> None:
    few = ("tasks.classes_per_task=100", "learn.hidden=[8]")
    result = context.measure(tmp_path, share=0.002, memory="2GiB", epochs=1, contexts=["none", "hops:1"], more=few)
    none, near = result["runs"]["none"], result["runs"]["hops:1"]
    assert none["graph_nodes"] == none["labelled_nodes"] == near["labelled_nodes"] < near["graph_nodes"]
    assert none["graph_edges"] < near["graph_edges"]
    for found in (none, near):
        assert 0 < found["peak_bytes"] < 2 << 30
        assert 0 <= found["aa"] <= 100
    assert [line.split("|")[1].strip() for line in context.table(result).split("\n")] == ["`none`", "`hops:1`"]


def test_peaks_outside_of_what_is_wanted_are_named() -> None:
    common = {"case": "ecgl as mlp", "num_nodes": 50, "stage": "train"}
    result = plan_peaks.judged([common | {"ratio": ratio} for ratio in (0.4, 0.5, 1.1, 1.2)])
    assert (result["smallest_ratio"], result["largest_ratio"]) == (0.4, 1.2)
    assert result["outside"] == ["ecgl as mlp, 50 nodes, train: 0.40", "ecgl as mlp, 50 nodes, train: 1.20"]


@pytest.mark.usefixtures("warm_bench")
def test_estimated_and_measured_times_of_a_run_are_compared(tmp_path: Path) -> None:
    case = plan_time.Case(plan_time.GENERATED, "finetune", "gcn", 2, threads=1)
    result = plan_time.run(tmp_path, tmp_path, 400, 1, [case])
    (row,) = result["rows"]
    assert row["case"] == "generated: finetune as gcn, 2 epochs, 1 thread"
    assert list(row["stages"]) == ["extract", "train", "remember", "evaluate"]
    assert row["ratio"] == row["estimated_seconds"] / row["measured_seconds"]
    assert [path.name for path in tmp_path.iterdir()] == ["time.yaml"]


def test_estimates_that_are_not_within_twice_are_named() -> None:
    result = plan_time.judged([{"case": "a", "ratio": ratio} for ratio in (0.4, 0.5, 2.0, 2.1)])
    assert (result["smallest_ratio"], result["largest_ratio"]) == (0.4, 2.1)
    assert result["outside"] == ["a: 0.40", "a: 2.10"]


def test_a_record_says_where_and_with_what_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    record = json.loads(harness.save("case", {"value": 1}).read_text())
    assert record["case"] == "case"
    assert record["value"] == 1
    assert record["measured"]["versions"]["numpy"]
    assert record["measured"]["cores"] >= 1


def test_a_failing_child_is_a_failure_of_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match="exited with 2"):
        harness.run_measured(harness.ecgl("no-such-command"))


def test_a_record_has_no_places_of_this_machine() -> None:
    given = ["-m", "bench.case", "--work", "/somewhere", "--repeats", "3", "--data", "/else", "--page", "/page.html"]
    assert harness._command(given) == "python -m bench.case --repeats 3"
