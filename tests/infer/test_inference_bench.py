"""The inference benchmark runs, at a size where it measures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import inference


def test_all_candidates_infer_the_same_graph(tmp_path: Path) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    result = inference.run(tmp_path, 2000, 1, 1, memory=1 << 30)
    assert result["all_agree"]
    assert result["compared_with_whole_graph"]["ours_numba"]["equal_predictions"] > 0.999
    assert set(result["time_share_of_whole_graph"]) == {"ours_dgl", "ours_numba"}
    assert 0 < result["peak_anon_bytes"]["ours_numba"] < 1 << 30
    assert result["times_faster_than_sampled"]["ours_numba"] > 0
    assert not list(tmp_path.iterdir())
