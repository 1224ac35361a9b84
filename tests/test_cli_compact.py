"""``ecgl compact`` and ``ecgl drop`` from outside: what they print, and with which code they end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale import GraphStore
from tests.cli_runner import run_cli
from tests.store.graphs import bytes_of
from tests.test_cli import write_npz
from tests.test_cli_append import write_new


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """Six nodes in two generations."""
    path = tmp_path / "g.ecgl"
    assert run_cli("ingest", "npz", write_npz(tmp_path / "old.npz"), path).code == 0
    assert run_cli("append", "npz", write_new(tmp_path / "new.npz"), path).code == 0
    return path


def test_compact_makes_one_generation_and_says_so(grown: Path) -> None:
    edges = GraphStore.open(grown).to_edge_index().tolist()
    ran = run_cli("compact", grown)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith(f"{grown}: 2 generations are one; 6 nodes, 7 edges, ")
    assert GraphStore.open(grown).generation == 0
    assert GraphStore.open(grown).to_edge_index().tolist() == edges
    before = bytes_of(grown)
    again = run_cli("compact", grown)
    assert (again.code, again.stdout) == (0, f"{grown}: one generation, nothing to compact; 6 nodes, 7 edges\n")
    assert bytes_of(grown) == before
    assert run_cli("verify", grown).code == 0


def test_compact_json_has_what_info_has(grown: Path) -> None:
    found = json.loads(run_cli("compact", grown, "--json", "--threads", 1).stdout)
    assert (found["generations_before"], found["num_nodes"], found["num_dropped"]) == (2, 6, 0)
    assert found["provenance"]["appended"][0]["kind"] == found["provenance"]["kind"]


def test_compact_refuses_what_is_no_store_on_this_machine(tmp_path: Path) -> None:
    assert run_cli("compact", tmp_path / "missing").code == 3
    refused = run_cli("compact", "s3://bucket/store")
    assert refused.code == 2
    assert "ecgl compact needs a file system" in refused.stderr


def test_drop_says_what_went_and_what_had_gone_before(grown: Path, tmp_path: Path) -> None:
    pytest.importorskip("ecgl_scale.store.node_list")
    np.save(tmp_path / "gone.npy", np.array([1, 4]))
    ran = run_cli("drop", grown, "--nodes", tmp_path / "gone.npy")
    assert ran.code == 0, ran.stderr
    assert ran.stdout == f"{grown}: 2 nodes and 6 edges dropped; ecgl compact erases what is on the disk\n"
    info = run_cli("info", grown).stdout
    assert "6, of which 2 are dropped" in info
    assert run_cli("verify", grown).code == 0
    again = run_cli("drop", grown, "--nodes", tmp_path / "gone.npy")
    assert again.stdout == f"{grown}: 0 nodes and 0 edges dropped (2 had been dropped before)\n"
    assert GraphStore.open(grown).generation == 2
    assert run_cli("compact", grown, "--json").code == 0
    assert GraphStore.open(grown).to_edge_index().tolist() == [[1], [0]]
    assert GraphStore.open(grown).column("label").tolist() == [0, -1, 1, -1]


def test_drop_refuses_an_unknown_node_and_leaves_the_store_as_it_was(grown: Path, tmp_path: Path) -> None:
    pytest.importorskip("ecgl_scale.store.node_list")
    before = bytes_of(grown)
    np.save(tmp_path / "gone.npy", np.array([1, 6]))
    ran = run_cli("drop", grown, "--nodes", tmp_path / "gone.npy")
    assert ran.code == 3
    assert "6" in ran.stderr
    assert bytes_of(grown) == before
