"""``bench.growth`` runs at sizes where it measures nothing; what it cuts apart is the graph that it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.growth.parts import Arriving, by_classes, by_release
from bench.growth.products import prepare
from bench.growth.real import BY_TIME, Case, grow
from bench.growth.running import Place, measure
from bench.growth.table import WANTED, enough_nodes, render

HOW = ("running", "commands")


def write_graph(path: Path) -> Path:
    """Sixty nodes in the layout of the real graphs: two releases, edges by the releases that have them."""
    random = np.random.default_rng(0)
    first = random.integers(0, 2, 60).astype(np.uint8)
    columns = np.stack([random.permutation(8)[:2] for _ in range(60)]).ravel()
    np.savez(
        path,
        edge_index=random.integers(0, 60, (2, 300)).astype(np.int32),
        edge_release_mask=random.integers(1, 4, 300).astype(np.uint8),
        first_release=first,
        num_nodes=np.array(60),
        y=random.integers(0, 2, 60).astype(np.int16),
        x_data=np.ones(120, np.uint8),
        x_indices=columns.astype(np.int32),
        x_indptr=np.arange(0, 121, 2).astype(np.int32),
        x_shape=np.array([60, 8]),
    )
    return path


def test_parts_are_the_graph_and_no_edge_comes_before_its_ends(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph.npz")
    graph = Arriving.of(path, by_release)
    parts: list[dict[str, Any]] = [dict(np.load(graph.write(part, tmp_path / "part.npz"))) for part in range(2)]
    given = np.load(path)
    assert [part["y"].size for part in parts] == np.bincount(given["first_release"]).tolist()
    assert sum(part["edge_index"].shape[1] for part in parts) == 300
    assert parts[0]["edge_index"].max() < parts[0]["y"].size
    order = np.argsort(given["first_release"], kind="stable")
    assert np.concatenate([part["x_indices"] for part in parts]).reshape(60, 2).tolist() == (
        given["x_indices"].reshape(60, 2)[order].tolist()
    )
    together = given["first_release"][given["edge_index"]]
    is_late = (together[0] == together[1]) & (together[0] == 0) & (given["edge_release_mask"] == 2)
    assert graph.count_late() == is_late.sum() > 0
    assert np.load(graph.write_whole(tmp_path / "whole.npz"))["edge_index"].shape[1] == 300 - is_late.sum()
    assert Arriving.of(path, lambda file: by_classes(file, 1)).num_parts == 2


@pytest.mark.usefixtures("warm_bench")
def test_growth_gives_the_numbers_of_a_run_on_the_whole(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz")
    result = grow(Case("graph", by_release, BY_TIME, 5), tmp_path, tmp_path, epochs=2)
    assert [row["part"] for row in result["rows"]] == [0, 1]
    assert result["rows"][-1]["aa"] == result["whole"]["aa"]
    assert f"| {result['rows'][1]['num_new_nodes']} |" in render({"real": {"a graph": result}})
    assert not list(tmp_path.glob("*.ecgl"))


def test_the_size_from_which_commands_reach_the_ratio_is_where_they_have_it() -> None:
    size = enough_nodes(2.0, 0.5, 30.0, 1000)
    assert size is not None
    times = size / 1000
    assert (2.0 + times * 30.0) / (2.0 + times * 0.5) == pytest.approx(WANTED)
    assert enough_nodes(2.0, 2.0, 30.0, 1000) is None


def test_a_graph_is_prepared_once_and_its_steps_are_measured(tmp_path: Path) -> None:
    prepare(tmp_path / "g", 600, 1, is_near=True)
    made = (tmp_path / "g" / "model" / "sealed.json").stat().st_mtime_ns
    prepare(tmp_path / "g", 600, 1, is_near=True)
    assert (tmp_path / "g" / "model" / "sealed.json").stat().st_mtime_ns == made
    place = Place(tmp_path / "g")
    found = {step: measure(step, place, 1) for step in ("append", "infer", "update")}
    assert found["append"]["new"][0].seconds > 0
    assert set(found["update"]) == {"new", "untested"}
    side = {"seconds": {"median": 1.0}, "cpu_seconds": 0.5, "written_bytes": 10, "fixed": {"cpu_seconds": 0.1}}
    graph = {name: {step: {"new": side, "everything": side} for step in ("append", "infer")} for name in HOW}
    table = render({"products": {"near": {**graph, "num_reached": 5, "num_nodes": 600}}})
    assert "| append / ingest | 1.0 / 1.0 | 1.0 | 0.50 / 0.50 | 1.0 | 0.0 / 0 | 1 |" in table
    assert "never" in table
