"""``bench.billion`` runs at a size where it measures nothing: every command is there, and the record is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bench import billion, harness

COMMANDS = ["generate", "verify", "rank", "run", "infer", "report"]


@pytest.mark.usefixtures("warm_bench")
def test_every_command_of_the_job_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billion, "drop_page_cache", lambda: False)  # the machine's caches are not ours to empty here
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    page, work = tmp_path / "page.html", tmp_path / "work"
    billion.main(["--nodes", "2000", "--memory", "2GiB", "--work", str(work), "--page", str(page), "--kron", "8"])
    record = json.loads((tmp_path / "results" / "billion.json").read_text(encoding="utf-8"))
    assert list(record["stages"]) == COMMANDS
    assert record["seconds"] == pytest.approx(sum(record["stages"][name]["seconds"] for name in COMMANDS[1:]))
    assert record["num_edges"] == pytest.approx(2000 * billion.DEGREE, rel=0.02)
    assert set(record["stages"]["run"]["stages"]) == {"extract", "train", "remember", "evaluate"}
    assert record["stages"]["rank"]["sweeps"] > 0
    assert record["kron"]["stages"]["rank"]["sweeps"] == billion.SWEEPS
    assert "<html" in page.read_text(encoding="utf-8")
    assert not list(work.iterdir()), "what the job has written is removed"


def test_the_config_is_the_one_that_is_measured() -> None:
    config = yaml.safe_load(billion.CONFIG.read_text(encoding="utf-8"))
    assert config["memory"] == "4GiB"
    assert billion.NUM_CLASSES // config["tasks"]["classes_per_task"] == 5
