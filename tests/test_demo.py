"""``make demo`` as a user runs it: its own graph, its own config, and the order of methods that the README shows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.session.streams import read_json

ROOT = Path(__file__).parents[1]
METHODS = ("finetune", "ecgl", "analytic", "joint")
SLACK = 2.0
"""Points that E-CGL may be above what joint training reaches, which is no bound for one seed."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_demo_shows_ecgl_between_fine_tuning_and_joint_training(tmp_path: Path, warm_commands: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "ecgl").symlink_to(warm_commands / "ecgl")
    done = subprocess.run(
        ["make", "--old-file", ".venv/.ready", "demo"],  # the environment is there: nothing is installed
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = {name: read_json(tmp_path / "demo" / name / "results.json") for name in METHODS}
    assert {name: found["method"] for name, found in results.items()} == {name: name for name in results}
    assert {found["num_tasks"] for found in results.values()} == {5}
    accuracy = {name: found["aa"] for name, found in results.items()}
    assert accuracy["finetune"] < accuracy["ecgl"] <= accuracy["joint"] + SLACK, accuracy
    seen = {name: found["aa_seen"] for name, found in results.items()}
    assert seen["finetune"] < seen["ecgl"] < seen["analytic"], seen
    assert "Traceback" not in done.stderr
    assert "<html" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    for name, value in accuracy.items():
        assert f"{value:.1f}" in done.stdout, name
