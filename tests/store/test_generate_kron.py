from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from ecgl_kernels.kronecker import QUADRANTS, alias_table, kronecker_edges, outcome_odds
from ecgl_kernels.random import substream
from ecgl_scale.errors import UsageError
from ecgl_scale.store.source import DenseSource, GraphSource
from ecgl_scale.store.sources.kron import kron_source
from tests import naive


def edges_of(source: GraphSource, max_edges: int, threads: int = 1) -> NDArray[np.int64]:
    with ThreadPoolExecutor(threads) as pool:
        blocks = list(pool.map(lambda piece: source.edges.read(piece.start, piece.stop), source.edges.cut(max_edges)))
    assert all(block.src.size <= max_edges for block in blocks)
    assert [block.first_row for block in blocks] == list(range(0, source.num_edges_hint, max_edges))
    return np.concatenate([np.stack([block.src, block.dst]).astype(np.int64) for block in blocks], axis=1)


@pytest.mark.parametrize("scale", [1, 4, 10, 11, 25, 32, 33, 40])
def test_edges_equal_the_naive_twin(scale: int) -> None:
    source = kron_source(scale=scale, edge_factor=40, seed=11)
    block = source.edges.read(0, 40)
    assert block.src.dtype == (np.uint32 if scale <= 32 else np.uint64)
    table = alias_table().tolist()
    expected = [naive.kronecker_edge(edge, scale, 11, table) for edge in range(40)]
    assert list(zip(block.src.tolist(), block.dst.tolist(), strict=True)) == expected


@pytest.mark.parametrize(("max_edges", "threads"), [(1000, 1), (777, 2), (257, 4), (1 << 20, 2)])
def test_edges_do_not_depend_on_blocks_or_threads(max_edges: int, threads: int) -> None:
    source = kron_source(scale=10, edge_factor=16, seed=3)
    assert np.array_equal(edges_of(source, max_edges, threads), edges_of(source, 4096))


def test_every_generated_edge_comes_once_and_ids_are_in_range() -> None:
    source = kron_source(scale=9, edge_factor=5)
    edges = edges_of(source, 100)
    assert edges.shape == (2, 5 << 9) == (2, source.num_edges_hint)
    assert edges.min() >= 0
    assert edges.max() < source.num_nodes == 512


def test_alias_table_has_the_exact_odds() -> None:
    odds = np.zeros(1024)
    for column, entry in enumerate(alias_table().tolist()):
        threshold, alias = divmod(entry, 1024)
        odds[column] += threshold / 2**32
        odds[alias] += (2**22 - threshold) / 2**32
    assert np.abs(odds - outcome_odds()).max() < 1e-7
    assert odds.sum() == 1.0


def unhidden_edges(count: int, scale: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    src, dst = np.empty(count, np.uint32), np.empty(count, np.uint32)
    kronecker_edges(0, substream(0, 0), scale, alias_table(), np.empty(0, np.uint64), src, dst)
    return src, dst


def test_quadrants_are_those_of_graph500_at_every_level() -> None:
    count, scale = 400_000, 23
    src, dst = unhidden_edges(count, scale)
    for level in range(scale):
        found = np.bincount(2 * (src >> level & 1) + (dst >> level & 1), minlength=4) / count
        error = np.sqrt(np.multiply(QUADRANTS, 1 - np.array(QUADRANTS)) / count)
        assert (np.abs(found - QUADRANTS) < 5 * error).all(), level


def test_levels_are_independent() -> None:
    src, dst = unhidden_edges(400_000, 20)
    bits = np.array([(ends >> level & 1).astype(float) for level in range(20) for ends in (src, dst)])
    correlation = np.corrcoef(bits)
    for level in range(20):  # the two ends of one level do hang together: that is the model
        correlation[2 * level : 2 * level + 2, 2 * level : 2 * level + 2] = 0
    assert np.abs(correlation).max() < 5 / np.sqrt(400_000)


def test_hiding_the_labels_renames_nodes_and_nothing_else() -> None:
    src, dst = unhidden_edges(16 << 12, 12)
    hidden = edges_of(kron_source(scale=12, edge_factor=16), 1 << 20)
    names = {int(old): int(new) for old, new in zip(np.r_[src, dst], hidden.ravel(), strict=True)}
    assert [names[int(old)] for old in np.r_[src, dst]] == hidden.ravel().tolist()
    assert len(set(names.values())) == len(names)
    assert abs(np.corrcoef(list(names), list(names.values()))[0, 1]) < 0.1


def test_degrees_are_skewed() -> None:
    source = kron_source(scale=14, edge_factor=16)
    degrees = np.sort(np.bincount(edges_of(source, 1 << 20).ravel(), minlength=source.num_nodes))[::-1]
    assert degrees[: source.num_nodes // 100].sum() > 0.15 * degrees.sum()
    assert (degrees == 0).sum() > 0.1 * source.num_nodes


def test_seeds_give_different_graphs() -> None:
    one, two = (edges_of(kron_source(scale=12, seed=seed), 1 << 20) for seed in (0, 1))
    assert (one == two).mean() < 0.01


def test_features_are_streamed_and_do_not_depend_on_blocks() -> None:
    features = kron_source(scale=8, num_features=5, seed=2).features
    assert isinstance(features, DenseSource)
    whole = np.concatenate(list(features.blocks(1000)))
    assert whole.shape == (256, 5)
    assert whole.dtype == features.dtype == np.float32
    assert np.array_equal(whole, np.concatenate(list(features.blocks(33))))
    assert kron_source(scale=8).features is None


@pytest.mark.parametrize(
    "bad", [{"scale": 0}, {"scale": 41}, {"edge_factor": 0}, {"edge_factor": 4097}, {"seed": -1}, {"num_features": -1}]
)
def test_arguments_out_of_range_are_usage_errors(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(bad.values())))):
        kron_source(**{"scale": 5, **bad})
