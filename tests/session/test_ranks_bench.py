"""The benchmark of ranks runs, at a size where it measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import ranks
from bench.harness import Measured
from tests.cli_runner import run_cli


@pytest.mark.usefixtures("warm_runs")
def test_both_candidates_train_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(command: Sequence[str]) -> Measured:
        ran = run_cli(*command[1:])
        assert ran.code == 0, ran.stderr
        return Measured(1.0, 1, 0, ran.stdout)

    monkeypatch.setattr(ranks, "run_measured", run_here)
    monkeypatch.setattr(ranks, "WIDTHS", {"narrow": (8, 1.0)})
    case = ranks.run(tmp_path, rows=3000, epochs=3, repeats=1)["cases"]["narrow"]
    assert case["losses_differ_by_at_most"] < 1e-6
    assert [found["n"] for found in case["seconds"].values()] == [2, 2]
    assert not list(tmp_path.iterdir())
