"""The epoch benchmark runs, at a size where it measures nothing."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from bench import epoch
from bench.harness import Measured


def run_here(command: Sequence[str]) -> Measured:
    """A child's work in this process, as six imports of torch and DGL take longer than everything else."""
    name, store, epochs, work = command[command.index("--child") + 1 :]
    said = io.StringIO()
    with redirect_stdout(said):
        epoch._child(name, Path(store), int(epochs), Path(work))
    return Measured(1.0, 1, 0, said.getvalue())


def test_all_candidates_train_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    monkeypatch.setattr(epoch, "run_measured", run_here)
    result = epoch.run(tmp_path, rows=[2000], shares={"corafull": 0.02}, epochs=2, repeats=1)
    rows, graph = result["rows"]["2000"], result["graphs"]["corafull"]
    assert rows["all_agree"]
    assert set(rows["times_torch"]) == {"memory", "disk"}
    assert graph["mlps_agree"]
    assert graph["features"] == "sparse"
    assert graph["gcn_over_mlp"] > 0
    assert not list(tmp_path.iterdir())
