"""The ``ecgl`` command from outside: what it does, what it prints where, and with which code it ends."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore, __version__
from ecgl_scale.cli import doctor
from ecgl_scale.units import MIB
from tests.cli_runner import run_cli

SBM = ("--nodes", 300, "--classes", 3, "--features", 8, "--average-degree", 6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "sbm.ecgl"
    result = run_cli("generate", "sbm", path, *SBM)
    assert result.code == 0, result.stderr
    return path


def write_npz(path: Path, **more: Any) -> Path:
    arrays: dict[str, Any] = {
        "edge_index": np.array([[0, 1, 2, 2, 3, 3], [1, 2, 0, 0, 3, 1]], np.int32),
        "x": np.arange(8, dtype=np.float32).reshape(4, 2) + 1,
        "y": np.array([0, 1, -1, 1], np.int16),
    }
    np.savez(path, **(arrays | more))
    return path


def test_without_arguments_help_is_shown() -> None:
    result = run_cli()
    text = result.stdout + result.stderr
    assert "Usage: ecgl" in text
    for command in ("doctor", "generate", "ingest", "info", "verify"):
        assert command in text


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("ingest", "--help"), ("generate", "kron", "-h")])
def test_help_ends_with_0(arguments: tuple[str, ...]) -> None:
    result = run_cli(*arguments)
    assert result.code == 0
    assert "Usage: ecgl" in result.stdout


def test_version_is_shown() -> None:
    assert run_cli("--version").stdout == f"ecgl {__version__}\n"


def test_generate_kron_makes_a_store_that_verifies(tmp_path: Path) -> None:
    path = tmp_path / "kron.ecgl"
    made = run_cli("generate", "kron", path, "--scale", 8, "--edge-factor", 4, "--features", 3, "--seed", 5)
    assert made.code == 0, made.stderr
    assert made.stdout.startswith(f"{path}: 256 nodes, ")
    assert run_cli("verify", path).code == 0
    with_json = run_cli("info", path, "--json")
    found = json.loads(with_json.stdout)
    assert (found["num_nodes"], found["num_features"], found["symmetrised"]) == (256, 3, True)
    assert found["input_edges"] == 1024
    assert found["provenance"]["seed"] == 5


def test_generate_kron_directed_stores_edges_as_drawn(tmp_path: Path) -> None:
    result = run_cli("generate", "kron", tmp_path / "k.ecgl", "--scale", 6, "--directed", "--json")
    found = json.loads(result.stdout)
    assert found["symmetrised"] is False
    assert found["num_edges"] <= found["input_edges"] == 1024


def test_info_json_has_every_field_a_script_needs(store: Path) -> None:
    found = json.loads(run_cli("info", store, "--json").stdout)
    assert found.keys() >= {
        "store",
        "num_nodes",
        "num_edges",
        "num_features",
        "num_classes",
        "columns",
        "symmetrised",
        "keeps_duplicates",
        "self_loops",
        "input_edges",
        "dropped_self_loops",
        "dropped_duplicates",
        "id_dtype",
        "num_blocks",
        "features",
        "total_bytes",
        "num_files",
        "provenance",
        "written_by",
    }
    assert (found["num_nodes"], found["num_edges"], found["num_features"], found["num_classes"]) == (300, 1800, 8, 3)
    assert found["columns"] == {"label": "int32", "arrival": "int32"}
    assert found["features"]["kind"] == "dense"


def test_info_is_a_readable_table(store: Path) -> None:
    result = run_cli("info", store)
    assert result.code == 0
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert rows["nodes"] == "300"
    assert rows["edges"].startswith("1,800 (both directions stored")
    assert rows["features"] == "8 a node, dense float32"


@pytest.mark.parametrize(("flags", "word"), [((), "read"), (("--fast",), "sampled")])
def test_verify_says_the_store_is_good(store: Path, flags: tuple[str, ...], word: str) -> None:
    result = run_cli("verify", store, *flags)
    assert result.code == 0
    assert result.stdout.startswith(f"{store}: good; 5 files")
    assert f"1,800 edges {word}" in result.stdout


def test_verify_json_is_one_object(store: Path) -> None:
    found = json.loads(run_cli("verify", store, "--fast", "--json").stdout)
    assert (found["ok"], found["fast"], found["num_files"], found["num_edges"]) == (True, True, 5, 1800)


def test_a_damaged_store_is_exit_3_and_the_file_is_named(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ecgl"
    shutil.copytree(store, copy)
    path = copy / "edges" / "00000.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for command in ("verify", "info"):
        result = run_cli(command, copy)
        assert result.code == 3
        assert result.stdout == ""
        assert str(path) in result.stderr
        assert "fix:" in result.stderr


def test_a_store_without_its_manifest_is_exit_3(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ecgl"
    shutil.copytree(store, copy)
    (copy / "manifest.json").unlink()
    result = run_cli("info", copy)
    assert result.code == 3
    assert "incomplete" in result.stderr


def test_ingest_npz_keeps_direction_and_drops_duplicates_and_loops(tmp_path: Path) -> None:
    result = run_cli("ingest", "npz", write_npz(tmp_path / "g.npz"), tmp_path / "g.ecgl", "--json")
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["input_edges"], found["num_edges"]) == (6, 4)
    assert (found["dropped_duplicates"], found["dropped_self_loops"]) == (1, 1)
    edges = GraphStore.open(tmp_path / "g.ecgl").to_edge_index()
    assert sorted(map(tuple, edges.T.tolist())) == [(0, 1), (1, 2), (2, 0), (3, 1)]


@pytest.mark.parametrize(
    ("flags", "num_edges"),
    [
        (("--keep-duplicates",), 5),
        (("--keep-self-loops",), 5),
        (("--add-self-loops",), 8),
        (("--symmetrise",), 8),
        (("--keep-duplicates", "--keep-self-loops"), 6),
    ],
)
def test_edge_options_do_what_they_say(tmp_path: Path, flags: tuple[str, ...], num_edges: int) -> None:
    result = run_cli("ingest", "npz", write_npz(tmp_path / "g.npz"), tmp_path / "g.ecgl", *flags, "--json")
    assert json.loads(result.stdout)["num_edges"] == num_edges


def test_ingest_edges_takes_files_features_and_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst\n0,1\n1,2\n")
    (tmp_path / "b.csv").write_text("src,dst\n2,3\n")
    np.save(tmp_path / "x.npy", np.ones((4, 5), np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 0, 1, 1]))
    result = run_cli(
        *("ingest", "edges", tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "g.ecgl", "--nodes", 4),
        *("--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--feature-dtype", "float16", "--json"),
    )
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["num_edges"], found["num_features"], found["num_classes"]) == (3, 5, 2)
    assert found["features"]["dtype"] == "float16"


def test_features_are_stored_sparse_when_asked(tmp_path: Path) -> None:
    arguments = (write_npz(tmp_path / "g.npz"), tmp_path / "g.ecgl", "--features-as", "sparse", "--json")
    assert json.loads(run_cli("ingest", "npz", *arguments).stdout)["features"]["kind"] == "sparse"


def test_an_existing_store_is_refused_and_kept_unless_overwrite_is_given(tmp_path: Path) -> None:
    path = tmp_path / "g.ecgl"
    assert run_cli("ingest", "npz", write_npz(tmp_path / "g.npz"), path).code == 0
    again = run_cli("generate", "sbm", path, *SBM)
    assert (again.code, again.stdout) == (3, "")
    assert "--overwrite" in again.stderr
    assert GraphStore.open(path).num_nodes == 4
    assert run_cli("generate", "sbm", path, *SBM, "--overwrite").code == 0
    assert GraphStore.open(path).num_nodes == 300


@pytest.mark.parametrize("content", ["directory", "file"])
def test_overwrite_replaces_stores_and_nothing_else(tmp_path: Path, content: str) -> None:
    target = tmp_path / "thesis"
    kept = target / "chapter.tex" if content == "directory" else target
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    result = run_cli("generate", "sbm", target, *SBM, "--overwrite")
    assert result.code == 3
    assert "nothing we wrote" in result.stderr
    assert kept.read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "sbm", "s", "--like", "arxiv", "--nodes", 10),
        ("generate", "sbm", "s", "--nodes", 10),
        ("generate", "sbm", "s", "--like", "facebook"),
        ("generate", "kron", "s"),
        ("generate", "kron", "s", "--scale", 0),
        ("ingest", "edges", "only-one", "--nodes", 3),
        ("ingest", "npz", "g.npz", "s", "--keep-self-loops", "--add-self-loops"),
        ("generate", "kron", "s", "--scale", 4, "--memory", "plenty"),
        ("--log-level", "loud", "info", "s"),
        ("fly",),
        ("info",),
    ],
)
def test_wrong_usage_is_exit_2_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "g.npz")
    result = run_cli(*arguments)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_bad_input_is_exit_3_with_file_and_row_and_leaves_nothing(tmp_path: Path) -> None:
    bad = write_npz(tmp_path / "g.npz", edge_index=np.array([[0, 1, 9], [1, 2, 0]]))
    result = run_cli("ingest", "npz", bad, tmp_path / "g.ecgl")
    assert (result.code, result.stdout) == (3, "")
    assert "g.npz" in result.stderr
    assert "9" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_a_missing_file_is_exit_3(tmp_path: Path) -> None:
    result = run_cli("ingest", "npz", tmp_path / "no.npz", tmp_path / "g.ecgl")
    assert result.code == 3
    assert "no.npz" in result.stderr


def test_a_budget_too_small_is_exit_4_and_names_one_that_fits(tmp_path: Path) -> None:
    result = run_cli("generate", "kron", tmp_path / "k.ecgl", "--scale", 6, "--memory", "8MiB")
    assert (result.code, result.stdout) == (4, "")
    assert "give at least --memory" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bug_of_ours_is_exit_70_with_its_trace(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **settings: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("ecgl_scale.store.verify.verify_store", broken)
    result = run_cli("verify", store)
    assert result.code == 70
    assert "KeyError: 'oops'" in result.stderr
    assert "please report it" in result.stderr


def test_ctrl_c_is_exit_130(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ecgl_scale.store.verify.verify_store", interrupted)
    assert run_cli("verify", store).code == 130


def test_sigterm_is_exit_75_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ecgl_scale.cli.main", "generate", "kron", str(tmp_path / "k.ecgl")]
    process = subprocess.Popen([*command, "--scale", "22"], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if (tmp_path / ".k.ecgl.building").exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 75, stderr
    assert "stopped by SIGTERM" in stderr
    assert list(tmp_path.iterdir()) == []


def test_quiet_says_nothing(tmp_path: Path) -> None:
    made = run_cli("--quiet", "generate", "sbm", tmp_path / "g.ecgl", *SBM)
    assert (made.code, made.stdout, made.stderr) == (0, "", "")
    checked = run_cli("-q", "verify", tmp_path / "g.ecgl")
    assert (checked.code, checked.stdout, checked.stderr) == (0, "", "")


def test_quiet_still_says_errors(tmp_path: Path) -> None:
    assert run_cli("-q", "info", tmp_path / "none").stderr.startswith("ecgl: error: there is no store here")


def test_no_progress_leaves_only_the_result(tmp_path: Path) -> None:
    made = run_cli("--no-progress", "generate", "sbm", tmp_path / "g.ecgl", *SBM)
    assert made.code == 0
    assert made.stderr == ""
    assert made.stdout.count("\n") == 1


def test_piped_output_holds_no_control_characters(tmp_path: Path, store: Path) -> None:
    for arguments in (("generate", "sbm", tmp_path / "g.ecgl", *SBM), ("info", store), ("verify", store), ("-h",)):
        result = run_cli(*arguments)
        text = result.stdout + result.stderr
        assert [character for character in text if ord(character) < 32 and character != "\n"] == []


def test_a_terminal_gets_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    result = run_cli("generate", "sbm", tmp_path / "g.ecgl", *SBM, terminal=True)
    assert result.code == 0
    assert "\x1b[" in result.stderr
    assert "partition edges" in result.stderr
    assert "\x1b" not in result.stdout


def test_json_on_stdout_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    result = run_cli("--log-level", "debug", "generate", "sbm", tmp_path / "g.ecgl", *SBM, "--json")
    assert json.loads(result.stdout)["num_nodes"] == 300
    assert "partition edges" in result.stderr


def test_log_lines_are_json_when_asked(tmp_path: Path) -> None:
    result = run_cli("--log-format", "json", "generate", "sbm", tmp_path / "g.ecgl", *SBM)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert len(lines) >= 4
    assert all(line.keys() == {"time", "level", "message"} for line in lines)
    assert any(line["message"].startswith("write features") for line in lines)


def test_log_level_warning_hides_the_stages(tmp_path: Path) -> None:
    assert run_cli("--log-level", "warning", "generate", "sbm", tmp_path / "g.ecgl", *SBM).stderr == ""


def test_the_runner_restores_signals_and_logging(store: Path) -> None:
    handler, handlers = signal.getsignal(signal.SIGTERM), logging.getLogger("ecgl_scale").handlers[:]
    run_cli("info", store)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert logging.getLogger("ecgl_scale").handlers == handlers


def test_doctor_tells_versions_limits_dgl_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "DISK_TEST_BYTES", 16 * MIB)
    result = run_cli("doctor", "--json")
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["ecgl_scale"] == __version__
    assert found["packages"].keys() >= {"numpy", "numba", "pyarrow", "zarr", "torch", "dgl"}
    assert found["memory_limits"]
    assert 0 < found["memory_budget_bytes"] < min(found["memory_limits"].values())
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["dgl"].startswith(("works", "not installed", "broken"))
    assert found["disk"]["write_bytes_per_second"] > 0
    assert found["disk"]["read_bytes_per_second"] > 0
    assert list(tmp_path.iterdir()) == []


def test_doctor_is_a_readable_table_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "DISK_TEST_BYTES", 16 * MIB)
    monkeypatch.setattr(doctor, "check_dgl", lambda: "works")
    lines = run_cli("doctor").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "ecgl_scale",
        "python",
        "packages",
        "cores",
        "memory limits",
        "default budget",
        "dgl",
        "disk here",
    ]
