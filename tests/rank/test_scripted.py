"""Every stage of a ranking gives the same bits on a worker that has only files, also where blocks fail on the way."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ecgl_scale import GraphStore
from ecgl_scale.engine import journal as journal_module
from ecgl_scale.engine.journal import VectorJournal
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import CorruptStoreError, StorageError, UsageError
from ecgl_scale.rank import attribute_units
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.attribute_sparse import SparsePasses
from ecgl_scale.rank.choose import ChooseSettings, choose_nodes
from ecgl_scale.rank.diversity import rank_diversity
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.rank.held_columns import DenseColumns, SparseColumns
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.rank.rank_vectors import exchange_bytes
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.store_ranking import rank_store
from ecgl_scale.rank.sweep import SweepWork
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.sources.arrays import array_source
from tests.resources import at
from tests.store.graphs import KEEP_ALL, random_edges

NUM_NODES, NUM_COLUMNS = 140_000, 12
"""Three ranges of nodes, so that there are three stripes."""
SETTINGS = PageRankSettings(tol=0.0, max_iter=5)


@pytest.fixture(scope="module", params=["dense", "sparse"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    random = np.random.default_rng(0)
    x = random.random((NUM_NODES, NUM_COLUMNS), np.float32) * (random.random((NUM_NODES, NUM_COLUMNS)) < 0.3)
    source = array_source(random_edges(NUM_NODES, 200_000), x=x.astype(np.float32), y=np.arange(NUM_NODES) % 5)
    path = tmp_path_factory.mktemp("graph") / "store"
    build_store(source, path, at(), options=KEEP_ALL, features_as=request.param)
    return GraphStore.open(path)


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., Any]:
    """Resources of a worker that fails as it is told."""

    def make(**script: Any) -> Any:
        return at(threads=2, executor=ScriptedExecutor(tmp_path / "counts", **script), work=tmp_path / "work")

    return make


def once(name: str, *blocks: int) -> dict[str, Any]:
    """Each of these blocks is lost once before it starts, and once when its rows are written."""
    failures = {(name, block): (OSError(errno.EIO, "lost"),) for block in blocks[::2]}
    after = {(name, block): OSError(errno.ESTALE, "lost") for block in blocks[1::2]}
    return {"failures": failures, "after": after}


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("script", [{}, once("rank.sweep", 0, 1, 2)], ids=["smooth", "failing"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_importance_of_files_has_the_bits_of_memory(
    graph: GraphStore, worker: Any, tmp_path: Path, with_reset: bool, script: dict[str, Any], precision: Any
) -> None:
    assert len(graph.tiles.blocks()) == 3
    reset = np.random.default_rng(1).random(NUM_NODES) if with_reset else None
    settings = PageRankSettings(tol=0.0, max_iter=5, precision=precision, dangling="reset")
    wanted = rank_importance(graph, at(threads=2), reset=reset, settings=settings)
    found = rank_importance(graph, worker(**script), reset=reset, settings=settings)
    assert found.ranks.tobytes() == wanted.ranks.tobytes()
    assert [sweep.residual for sweep in found.sweeps] == [sweep.residual for sweep in wanted.sweeps]
    assert files_below(tmp_path / "work") == []
    lost = len(script.get("failures", {})) + len(script.get("after", {}))
    executor = worker().executor
    assert sum(executor.times_run("rank.sweep", block) for block in range(3)) == 3 * 6 + lost


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_sweep_exchanges_the_bytes_of_the_formula(
    graph: GraphStore, worker: Any, with_reset: bool, precision: Any
) -> None:
    reset = np.ones(NUM_NODES) if with_reset else None
    settings = PageRankSettings(tol=0.0, max_iter=2, precision=precision)
    cuts = [*(block.start for block in graph.tiles.blocks()), graph.tiles.num_ranges * RANGE_ROWS]
    wanted = exchange_bytes(cuts, precision, 1, with_reset=with_reset)
    found = rank_importance(graph, worker(), reset=reset, settings=settings)
    assert [sweep.exchanged_bytes for sweep in found.sweeps] == [wanted, wanted]
    assert found.exchanged_bytes == 2 * wanted
    assert rank_importance(graph, at(threads=2), reset=reset, settings=settings).exchanged_bytes == 0


def test_a_worker_holds_the_contributions_of_one_round(graph: GraphStore, worker: Any, monkeypatch: Any) -> None:
    held: list[Any] = []
    look = SweepWork._all_contributions

    def watch(work: SweepWork, number: int) -> Any:
        found = look(work, number)
        held.append(found[0])
        return found

    monkeypatch.setattr(SweepWork, "_all_contributions", watch)
    rank_importance(graph, worker(), settings=SETTINGS)
    assert len({array.ctypes.data for array in held}) == 1


def test_only_the_last_two_sweeps_are_in_files(graph: GraphStore, worker: Any, tmp_path: Path) -> None:
    seen = []

    def look(event: Any) -> None:
        seen.append({path.parent.name for path in (tmp_path / "work").rglob("ranks/*/*.rows")})

    rank_importance(graph, worker().with_events(look), settings=SETTINGS)
    assert seen[-1] == {"5"}
    assert all(len(names) <= 1 for names in seen)


@pytest.mark.parametrize("slices", [[0, 12], [0, 4, 8, 12]])
@pytest.mark.parametrize("script", [{}, once("rank.diversity", 0, 1, 2)], ids=["smooth", "failing"])
@pytest.mark.parametrize("given", [None, "float32", "float64", "bool", "by columns"])
def test_diversity_of_files_has_the_bits_of_memory(
    graph: GraphStore,
    worker: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slices: list[int],
    script: dict[str, Any],
    given: str | None,
) -> None:
    x: NDArray[Any] | None = None
    if given is not None:
        x = np.random.default_rng(2).normal(size=(NUM_NODES, NUM_COLUMNS))
        x = np.asfortranarray(x, np.float32) if given == "by columns" else x.astype(given)
    wanted = rank_diversity(graph, at(threads=2), features=x, include_self=True)
    if given in (None, "float64"):  # others are used as they are, all columns at once
        for kind in (DenseColumns, SparseColumns):
            monkeypatch.setattr(kind, "plan", lambda self, budget, base, nodes, threads, first: slices)
    found = rank_diversity(graph, worker(**script), features=x, include_self=True)
    assert found.scores.tobytes() == wanted.scores.tobytes()
    assert found.passes == (len(slices) - 1 if given in (None, "float64") else 1)
    assert found.read_bytes > 0
    assert files_below(tmp_path / "work") == []


@pytest.mark.parametrize("order", [("scripted", "local"), ("local", "scripted")])
def test_a_killed_diversity_goes_on_with_another_executor(
    graph: GraphStore, worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    wanted = rank_diversity(graph, at()).scores
    monkeypatch.setattr(journal_module, "EVERY_SECONDS", 0.0)
    for kind in (DenseColumns, SparseColumns):
        monkeypatch.setattr(
            kind, "plan", lambda self, budget, base, nodes, threads, first: [n for n in (0, 4, 8, 12) if n >= first]
        )

    def stop(event: Any) -> None:
        if getattr(event, "done", 0) == 8:
            raise KeyboardInterrupt

    where = {"scripted": worker(), "local": at()}
    journal = VectorJournal(tmp_path / "journal", {"who": 1})
    with pytest.raises(KeyboardInterrupt):
        rank_diversity(graph, where[order[0]].with_events(stop), journal=journal)
    journal.close()
    journal = VectorJournal(tmp_path / "journal", {"who": 1})
    found = rank_diversity(graph, where[order[1]], journal=journal)
    journal.close()
    assert (found.resumed_columns, found.passes) == (8, 1)
    assert found.scores.tobytes() == wanted.tobytes()


def test_attributes_of_files_have_the_bits_of_memory(graph: GraphStore, worker: Any, tmp_path: Path) -> None:
    names = ("accumulate", "evaluate") if graph.features.kind == "dense" else ("strip_sums", "strip_values")  # type: ignore[union-attr]
    wanted = attribute_vector(graph.features, at(threads=2))  # type: ignore[arg-type]
    for name in names:
        found = attribute_vector(graph.features, worker(**once(f"rank.attribute.{name}", 0)))  # type: ignore[arg-type]
        assert found.tobytes() == wanted.tobytes()
        assert worker().executor.times_run(f"rank.attribute.{name}", 0) >= 2
    assert files_below(tmp_path / "work") == []


def test_several_units_of_an_array_are_added_in_order_wherever_they_were_summed(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribute_units, "UNIT_BYTES", 1)
    for x in (
        np.random.default_rng(3).normal(size=(20_000, 7)).astype(np.float32),
        np.asfortranarray(np.random.default_rng(4).normal(size=(9_000, 5))),
        np.random.default_rng(5).integers(0, 3, (9_000, 4)),
    ):
        script = once("rank.attribute.accumulate", 0, 1)
        wanted = attribute_vector(x, at(threads=2))
        assert attribute_vector(x, worker(**script)).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("strip_bytes", [8, 200, 10**6])
def test_strips_in_files_have_the_bits_of_strips_in_memory(graph: GraphStore, worker: Any, strip_bytes: int) -> None:
    if graph.features is None or graph.features.kind != "sparse":
        pytest.skip("strips are of sparse features")
    wanted = attribute_vector(graph.features, at(threads=2))
    resources = worker(**once("rank.attribute.strip_values", 0, 3))
    source = FeatureSource.of(graph.features, resources, "attributes")
    passes = SparsePasses(source, 1 / NUM_COLUMNS, resources, strip_bytes=strip_bytes)
    assert (len(passes.strips) == 1) == (strip_bytes == 10**6)
    found = passes.run(on_rows=lambda _: None)
    assert (found / found.sum()).tobytes() == wanted.tobytes()


def test_a_bit_flipped_between_blocks_is_found(graph: GraphStore, worker: Any, tmp_path: Path) -> None:
    def flip(event: Any) -> None:
        for path in (tmp_path / "work").rglob("contributions/3/*.rows"):
            content = bytearray(path.read_bytes())
            content[100] ^= 4
            path.write_bytes(content)

    with pytest.raises(CorruptStoreError, match="contributions/3"):
        rank_importance(graph, worker().with_events(flip), settings=SETTINGS)


def test_features_for_workers_are_compared_with_what_was_written(tmp_path: Path, worker: Any) -> None:
    x = np.random.default_rng(0).random((100, 3), np.float32)
    source = FeatureSource.of(x, worker(), "given")
    again = FeatureSource.open(source.description)
    np.testing.assert_array_equal(again.features, x)  # type: ignore[arg-type]
    path = Path(source.description["file"])
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="not as they were written"):
        FeatureSource.open(source.description)


@pytest.mark.parametrize(
    ("error", "times"), [(UsageError("no"), 1), (OSError(errno.ENOSPC, "full"), 1), (OSError(errno.EIO, "lost"), 3)]
)
def test_a_stripe_that_cannot_be_done_ends_the_ranking(
    graph: GraphStore, worker: Any, error: Exception, times: int
) -> None:
    with pytest.raises((UsageError, OSError, StorageError)):
        rank_importance(graph, worker(failures={("rank.sweep", 1): [error] * 9}), settings=SETTINGS)
    assert worker().executor.times_run("rank.sweep", 1) == times


def test_a_whole_ranking_and_a_choice_are_the_same_for_any_executor(
    graph: GraphStore, worker: Any, tmp_path: Path
) -> None:
    asked = RankRequest("both", pagerank=PageRankSettings(max_iter=5), topk=500, quota="class")
    rank_store(graph, tmp_path / "local.parquet", asked, at())
    rank_store(graph, tmp_path / "files.parquet", asked, worker())
    assert (tmp_path / "local.parquet").read_bytes() == (tmp_path / "files.parquet").read_bytes()
    settings, candidates = ChooseSettings(100, 0.5, pagerank=PageRankSettings(max_iter=5)), np.arange(0, NUM_NODES, 3)
    outputs = np.random.default_rng(6).normal(size=(NUM_NODES, 4)).astype(np.float32)
    labels = np.arange(NUM_NODES) % 5
    chosen = [
        choose_nodes(graph, candidates, labels, resources, settings=settings, rank_features=outputs)
        for resources in (at(), worker())
    ]
    for name in ("local", "importance", "diversity"):
        np.testing.assert_array_equal(getattr(chosen[0], name), getattr(chosen[1], name))
    assert files_below(tmp_path / "work") == []
