"""``configs/monthly.sh``: a month is fed in, killed between its steps, and fed in again by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from ecgl_scale import GraphStore
from tests.cli_runner import run_cli
from tests.session.streams import read_json
from tests.store.graphs import bytes_of

ROOT = Path(__file__).parents[1]
MONTHS = {"october": (0, 300), "november": (300, 400)}
SHIM = """#!/usr/bin/env bash
"{ecgl}" --quiet "$@"
code=$?
echo "$1" >> said.txt
if [ "$1" = "${{KILL_AFTER:-}}" ]; then kill -9 $PPID; fi
exit $code
"""


@pytest.fixture
def folder(tmp_path: Path, warm_commands: Path) -> Path:
    """Two months, the second with a class of its own, small settings, and an ``ecgl`` that kills the script."""
    random = np.random.default_rng(0)
    y = np.where(np.arange(400) < 330, random.integers(0, 2, 400), 2)
    x = (np.eye(4)[y] * 3 + random.normal(size=(400, 4))).astype(np.float32)
    keys, ends = np.array([f"p{number}" for number in range(400)]), random.integers(0, 400, (2, 2000))
    for month, (first, stop) in MONTHS.items():
        (tmp_path / month).mkdir()
        came = (ends.max(axis=0) >= first) & (ends.max(axis=0) < stop)
        edges = pa.table({"src": keys[ends[0, came]], "dst": keys[ends[1, came]]})
        pa_csv.write_csv(edges, tmp_path / month / "edges.csv")
        np.save(tmp_path / month / "x.npy", x[first:stop])
        labels = [f"topic {label}" for label in y[first:stop]]
        pq.write_table(pa.table({"id": keys[first:stop], "label": labels}), tmp_path / month / "nodes.parquet")
    config = yaml.safe_load((ROOT / "configs" / "monthly.yaml").read_text(encoding="utf-8"))
    config["learn"] |= {"hidden": [8], "epochs": 5}
    (tmp_path / "monthly.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shim = tmp_path / "bin" / "ecgl"
    shim.parent.mkdir()
    shim.write_text(SHIM.format(ecgl=warm_commands / "ecgl"), encoding="utf-8")
    shim.chmod(0o755)
    return tmp_path


def feed(folder: Path, month: str, kill_after: str = "") -> tuple[int, list[str]]:
    """The exit code of the script, and the commands that it came to."""
    (folder / "said.txt").unlink(missing_ok=True)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", str(ROOT / "configs" / "monthly.sh"), month],
        cwd=folder,
        env=os.environ | {"PATH": path, "CONFIG": "monthly.yaml", "KILL_AFTER": kill_after},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
    return ran.returncode, (folder / "said.txt").read_text(encoding="utf-8").split()


def begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script does in the first month, without the start of a process for each step."""
    monkeypatch.chdir(folder)
    nodes = ["--features", "october/x.npy", "--columns", "october/nodes.parquet", "--id-column", "id", "--id"]
    for step in (
        ["ingest", "edges", "october/edges.csv", "monthly.ecgl", *nodes, "--symmetrise"],
        ["run", "monthly.yaml", "--out", "model"],
        ["infer", "model", "monthly.ecgl", "--out", "predictions.parquet", "--id"],
    ):
        ran = run_cli("--quiet", *step)
        assert ran.code == 0, ran.stderr


def test_a_month_that_is_killed_after_its_update_is_fed_in_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(folder, monkeypatch)
    assert feed(folder, "november", kill_after="update") == (-signal.SIGKILL, ["append", "infer", "update"])
    updated = bytes_of(folder / "model" / "versions" / "0001")
    code, said = feed(folder, "november")
    assert (code, said) == (0, ["append", "infer", "update", "infer", "report"])

    graph = GraphStore.open(folder / "monthly.ecgl")
    assert graph.num_nodes == 400
    assert graph.num_edges == len(set(map(tuple, graph.to_edge_index().T.tolist())))
    assert [path.name for path in (folder / "model" / "versions").iterdir()] == ["0001"]
    assert bytes_of(folder / "model" / "versions" / "0001") == updated
    tasks = read_json(folder / "model" / "versions" / "0001" / "results.json")["tasks"]
    assert [task["num_nodes"] for task in tasks] == [300, 100]
    assert "topic 2" in tasks[1]["class_names"]
    predictions = pq.read_table(folder / "predictions.parquet")
    assert predictions.column("id").to_pylist() == [f"p{number}" for number in range(400)]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Versions" in page
    assert "generation 1" in page


@pytest.mark.parametrize("code", [4, 75])
def test_a_step_that_fails_or_is_stopped_ends_the_script_with_its_own_code(tmp_path: Path, code: int) -> None:
    (tmp_path / "ecgl").write_text(f'#!/usr/bin/env bash\n[ "$1" != infer ] || exit {code}\n', encoding="utf-8")
    (tmp_path / "ecgl").chmod(0o755)
    (tmp_path / "model").mkdir()
    for name in ("monthly.ecgl", "predictions.parquet", "model/sealed.json"):
        (tmp_path / name).touch()
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for left in (True, False):
        ran = subprocess.run(
            ["bash", str(ROOT / "configs" / "monthly.sh"), "came"],
            cwd=tmp_path,
            env=environment,
            check=False,
            timeout=20,
        )
        assert ran.returncode == code, left
        (tmp_path / "predictions.parquet").unlink(missing_ok=True)  # then it is the last `infer` that ends so
