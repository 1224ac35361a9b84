"""Features from a file: mapped, told apart by their content, and never mixed with a journal of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.events import BlockFinished
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine import journal
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.rank.feature_files import check_finite, digest_features, map_features
from ecgl_scale.rank.pagerank import STAGE, PageRankSettings
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.store_ranking import rank_store
from tests.resources import at

NUM_NODES = 200


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    edges = np.random.default_rng(0).integers(0, NUM_NODES, (2, 800))
    return GraphStore.from_edge_index(edges, path=tmp_path_factory.mktemp("g") / "g.ecgl", num_nodes=NUM_NODES)


def test_the_file_is_mapped_and_costs_no_memory(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((1 << 20, 32), np.float32)
    np.save(tmp_path / "x.npy", x)
    digest = digest_features(x)
    del x
    before = own_memory_bytes()
    mapped = map_features(tmp_path / "x.npy", 1 << 20)
    assert digest_features(mapped) == digest
    assert own_memory_bytes() - before < 16 << 20
    assert not mapped.flags.writeable


def test_a_number_that_is_not_finite_is_named_with_its_row(tmp_path: Path) -> None:
    x = np.zeros((300_000, 3))
    x[299_999, 1] = np.inf
    with pytest.raises(InvalidInputError, match="row 299999"):
        check_finite(x, tmp_path)


@pytest.mark.parametrize("same", [True, False])
def test_a_stopped_ranking_goes_on_only_with_the_same_features(
    graph: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    x = np.random.default_rng(1).normal(size=(NUM_NODES, 4))
    np.save(tmp_path / "x.npy", x)
    request = RankRequest(features=tmp_path / "x.npy", pagerank=PageRankSettings(tol=1e-12))

    def stop_at_five(event: Any) -> None:
        if isinstance(event, BlockFinished) and event.stage == STAGE and event.done == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        rank_store(graph, tmp_path / "s.parquet", request, at(on_event=stop_at_five))
    if not same:
        np.save(tmp_path / "x.npy", x + 1)  # the same file, other numbers
    report = rank_store(graph, tmp_path / "s.parquet", request, at())
    assert report.importance is not None
    assert (report.importance["resumed_from"] > 0) == same
    rank_store(graph, tmp_path / "anew.parquet", request, at())
    assert (tmp_path / "s.parquet").read_bytes() == (tmp_path / "anew.parquet").read_bytes()
