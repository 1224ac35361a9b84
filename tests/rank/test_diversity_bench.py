"""The diversity benchmark runs, at a size where it measures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import diversity
from tests.bench_children import run_here


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # torch's, of a peer, once a process
def test_all_candidates_score_the_same_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    monkeypatch.setattr(diversity, "run_measured", run_here(but_not="streamed"))
    result = diversity.run(tmp_path, 8, 20, 1, memory=1 << 30)
    assert result["all_agree"]
    assert set(result["times_faster_than"]["streamed"]) == {"dgl", "torch_csr"}
    assert 1 < result["peak_anon_bytes"]["streamed"] < 1 << 30
    assert not list(tmp_path.iterdir())
