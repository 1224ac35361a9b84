"""The benchmarks run, at sizes where they measure nothing, so that they cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import build_budget, build_peers, build_scale, harness


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
    result = build_peers.run(tmp_path, 8, "1GiB", repeats=1)
    assert result["entries"]["dgl"] == 2 * result["raw_pairs"]
    # scipy sums duplicates but keeps loops; we drop both.
    assert result["entries"]["ecgl_scale"] < result["entries"]["scipy"] < result["entries"]["dgl"]
    assert set(result["times_faster_than"]) == {"scipy", "dgl"}


def test_the_budget_case_tells_kept_budgets_and_equal_bytes(tmp_path: Path) -> None:
    result = build_budget.run(tmp_path, 8, 4, ["512MiB", "1GiB"])
    assert [row["kept"] for row in result["rows"]] == [True, True]
    assert result["same_bytes_under_every_budget"]


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
