"""Where only some rows are asked for, partitions without any are left out of the last layer; others keep their bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.base.events import BlockFinished
from ecgl_scale.engine import journal
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.graph.partition import CHUNK_ROWS
from ecgl_scale.infer.asked import AskedRows
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.layout import PassLayout, Planner
from ecgl_scale.infer.settings import InferResult, InferSettings
from ecgl_scale.store.graph import GraphStore
from tests.infer.networks import layers_of, random_graph
from tests.resources import at

NUM_NODES, PARTITIONS = 5 * CHUNK_ROWS, 5
LAYERS = layers_of(20, 33, 7)
ROWS = np.array([2 * CHUNK_ROWS + 5, 2 * CHUNK_ROWS + 7, 4 * CHUNK_ROWS])
PASSES = {"whole": None, "slices": (PassLayout((0, 20), True), PassLayout((0, 4, 7), True))}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return random_graph(tmp_path_factory.mktemp("graph") / "g", NUM_NODES, 20_000, 20)


def infer(graph: GraphStore, work: Path, asked: AskedRows | None = None, **resources: Any) -> InferResult:
    settings = InferSettings(backend="numba", partitions=PARTITIONS)
    return infer_logits(graph, LAYERS, at(**resources), settings=settings, work_directory=work, asked=asked)


@pytest.mark.parametrize("passes", PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("is_shared", [True, False])
def test_the_rows_that_are_asked_for_have_the_same_bits(
    graph: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Any, is_shared: bool
) -> None:
    if passes is not None:
        find = Planner.find
        monkeypatch.setattr(Planner, "find", lambda self, room: replace(find(self, room), passes=passes))
    wanted = infer(graph, tmp_path / "all")
    executor = None if is_shared else ScriptedExecutor(tmp_path / "counts")
    found = infer(graph, tmp_path / "some", AskedRows.of(ROWS), executor=executor)
    np.testing.assert_array_equal(found.logits[ROWS], wanted.logits[ROWS])
    assert not found.logits[:CHUNK_ROWS].any(), "a partition that nobody has asked for was computed"
    assert found.read_bytes < wanted.read_bytes


def test_what_several_ask_for_is_found_together(graph: GraphStore, tmp_path: Path) -> None:
    """Partitions with rows of any set are computed, once, and no others."""
    sets = [ROWS[:2], ROWS[2:], ROWS[:1]]
    wanted, found = infer(graph, tmp_path / "all"), infer(graph, tmp_path / "some", AskedRows.of(*sets))
    for rows in sets:
        np.testing.assert_array_equal(found.logits[rows], wanted.logits[rows])
    computed = [bool(found.logits[first : first + CHUNK_ROWS].any()) for first in range(0, NUM_NODES, CHUNK_ROWS)]
    assert computed == [False, False, True, False, True]
    assert AskedRows.of(*sets).chunks.tolist() == AskedRows.of(ROWS).chunks.tolist()


def test_it_goes_on_wherever_it_stops(graph: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    asked = AskedRows.of(ROWS)
    wanted = infer(graph, tmp_path / "whole", asked)

    def stop(event: Any) -> None:
        if isinstance(event, BlockFinished) and event.done == PARTITIONS + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        infer(graph, tmp_path / "w", asked, on_event=stop)
    found = infer(graph, tmp_path / "w", asked)
    assert found.resumed_partitions == PARTITIONS + 1
    np.testing.assert_array_equal(found.logits, wanted.logits)
