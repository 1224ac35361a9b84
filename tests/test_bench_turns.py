"""Two checkouts in turns, at a tiny size: both are this one."""

from __future__ import annotations

from pathlib import Path

from bench import turns


def test_every_case_asks_the_command_and_finds_its_seconds(tmp_path: Path, warm_commands: Path) -> None:
    ecgl = str(warm_commands / "ecgl")
    turns._prepare(ecgl, tmp_path, scale=8, nodes=600)
    found = {**turns._kron(ecgl, tmp_path, 8), **turns._ingest(ecgl, tmp_path), **turns._sweeps(ecgl, tmp_path, 8)}
    found |= {**turns._scores(ecgl, tmp_path), **turns._run(ecgl, tmp_path)}
    assert set(found) == {
        "build", "ingest", "pagerank", "attributes", "diversity", "epoch", "inference",
        "run extract", "run remember", "run evaluate",
    }  # fmt: skip
    assert all(seconds > 0 for seconds in found.values())
