"""Degrees that workers count in files are those that one process counts."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.rank import degrees as degrees_module
from ecgl_scale.rank.degrees import cut_parts, keep_degrees, out_degrees
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import RANGE_ROWS, BuildOptions
from ecgl_scale.store.sources.arrays import array_source
from tests.resources import at
from tests.store.graphs import random_edges

NUM_NODES = 3 * RANGE_ROWS - 7


@pytest.mark.parametrize("symmetrise", [False, True])
def test_workers_that_are_lost_now_and_then_count_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symmetrise: bool
) -> None:
    monkeypatch.setattr(degrees_module, "PART_EDGES_PER_NODE", 1)
    source = array_source(random_edges(NUM_NODES, 2 * NUM_NODES), num_nodes=NUM_NODES)
    build_store(source, tmp_path / "store", at(), options=BuildOptions(symmetrise=symmetrise))
    graph = GraphStore.open(tmp_path / "store")
    cuts = [0, RANGE_ROWS, 2 * RANGE_ROWS, 3 * RANGE_ROWS]
    lost = OSError(errno.EIO, "lost")
    executor = ScriptedExecutor(
        tmp_path / "counts", failures={("rank.degrees", 0): [lost]}, after={("rank.degrees", 1): lost}
    )
    place = keep_degrees(graph, at(executor=executor, work=tmp_path / "work"), "degrees", cuts)
    np.testing.assert_array_equal(place.read(0, cuts[-1]), out_degrees(graph))
    assert executor.times_run("rank.degrees", 0) == (2 if symmetrise else 3)
    assert [path.parent.name for path in (tmp_path / "work").rglob("*.rows")] == ["all"] * 3


def test_parts_have_all_blocks_once_and_no_more_than_there_are(tmp_path: Path) -> None:
    source = array_source(random_edges(NUM_NODES, 40 * NUM_NODES), num_nodes=NUM_NODES)
    build_store(source, tmp_path / "store", at())
    parts = cut_parts(GraphStore.open(tmp_path / "store"))
    assert [(part.start, part.stop) for part in parts] == [(0, 1), (1, 2), (2, 3)]
