"""The epoch benchmark runs, at a size where it measures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import epoch
from tests.bench_children import run_here


def test_all_candidates_train_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    monkeypatch.setattr(epoch, "run_measured", run_here())
    result = epoch.run(tmp_path, rows=[2000], shares={"corafull": 0.02}, epochs=2, repeats=1)
    rows, graph = result["rows"]["2000"], result["graphs"]["corafull"]
    assert rows["all_agree"]
    assert set(rows["times_torch"]) == {"memory", "disk"}
    assert graph["mlps_agree"]
    assert graph["features"] == "sparse"
    assert graph["gcn_over_mlp"] > 0
    assert not list(tmp_path.iterdir())
