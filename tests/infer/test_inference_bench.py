"""The inference benchmark runs, at a size where it measures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import inference
from tests.bench_children import run_here


def test_all_candidates_infer_the_same_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    monkeypatch.setattr(inference, "run_measured", run_here(but_not="ours_numba"))
    result = inference.run(tmp_path, 2000, 1, 1, memory=4 << 30)  # with what all tests before hold
    assert result["all_agree"]
    assert result["compared_with_whole_graph"]["ours_numba"]["equal_predictions"] > 0.999
    assert set(result["time_share_of_whole_graph"]) == {"ours_dgl", "ours_numba"}
    assert 1 < result["peak_anon_bytes"]["ours_numba"] < 1 << 30
    assert result["times_faster_than_sampled"]["ours_numba"] > 0
    assert not list(tmp_path.iterdir())
