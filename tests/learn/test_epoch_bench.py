"""The epoch benchmark runs, at a size where it measures nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import epoch
from ecgl_scale import GraphStore
from tests.bench_children import run_here


def test_all_candidates_train_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    monkeypatch.setattr(epoch, "run_measured", run_here())
    monkeypatch.setattr(epoch, "BATCH_ROWS", 100)
    result = epoch.run(tmp_path, rows=[2000], shares={"corafull": 0.02, "products": 0.0005}, epochs=2, repeats=1)
    rows, graph, batched = result["rows"]["2000"], result["graphs"]["corafull"], result["graphs"]["products"]
    assert rows["all_agree"]
    assert set(rows["times_torch"]) == {"memory", "disk"}
    assert graph["mlps_agree"]
    assert graph["features"] == "sparse"
    assert graph["gcn_over_mlp"] > 0
    assert graph["sampled_gcn_over_mlp"] is None
    assert batched["sampled_gcn_over_mlp"] > 0
    assert not list(tmp_path.iterdir())


def test_the_time_of_some_batches_stands_for_all(tmp_path: Path) -> None:
    graph = GraphStore.from_edge_index(
        np.array([[0], [1]]), np.ones((100_000, 4), np.float32), np.zeros(100_000, np.int64), path=tmp_path / "g"
    )
    num_batches = 100_000 * epoch.TRAIN_SHARE / epoch.BATCH_ROWS
    assert epoch._share_timed("dgl_sampled", graph) == pytest.approx(epoch.TIMED_BATCHES / num_batches, rel=0.02)
    assert epoch._share_timed("dgl_gcn", graph) == 1.0
