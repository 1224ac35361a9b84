from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ecgl_scale.errors import UsageError
from ecgl_scale.store.source import ColumnSource, DenseSource, GraphSource, SparseSource
from ecgl_scale.store.sources.sbm import LIKE, SbmSettings, like_source, sbm_source


def edges_of(source: GraphSource, max_edges: int, threads: int = 1) -> NDArray[np.int64]:
    with ThreadPoolExecutor(threads) as pool:
        blocks = list(pool.map(lambda piece: source.edges.read(piece.start, piece.stop), source.edges.cut(max_edges)))
    assert all(0 < block.src.size <= max_edges for block in blocks)
    return np.concatenate([np.stack([block.src, block.dst]).astype(np.int64) for block in blocks], axis=1)


def column_of(source: GraphSource, name: str, max_rows: int = 1 << 20) -> NDArray[np.int64]:
    (column,) = (column for column in source.columns if column.name == name)
    assert isinstance(column, ColumnSource)
    blocks = list(column.blocks(max_rows))
    assert all(block.dtype == column.dtype == np.int32 and block.size <= max_rows for block in blocks)
    return np.concatenate(blocks).astype(np.int64)


def stored_count(edges: NDArray[np.int64], num_nodes: int, *, symmetrise: bool) -> int:
    """What the builder keeps: both directions if asked, no loops, no duplicates."""
    src, dst = edges
    if symmetrise:
        src, dst = np.r_[src, dst], np.r_[dst, src]
    keep = src != dst
    return np.unique(src[keep] * num_nodes + dst[keep]).size


def small(**changes: object) -> GraphSource:
    settings_: dict[str, object] = {"num_nodes": 5000, "num_classes": 8, "num_features": 16, "seed": 4, **changes}
    return sbm_source(SbmSettings(**settings_))  # type: ignore[arg-type]


@pytest.mark.parametrize(("max_edges", "threads"), [(1, 2), (333, 1), (1000, 2), (1 << 20, 1)])
def test_edges_do_not_depend_on_blocks_or_threads(max_edges: int, threads: int) -> None:
    source = small(num_nodes=300, average_degree=10.0)
    assert np.array_equal(edges_of(source, max_edges, threads), edges_of(source, 97))


@pytest.mark.parametrize("symmetrise", [True, False])
def test_stored_edges_are_exactly_as_many_as_asked(symmetrise: bool) -> None:
    source = small(average_degree=20.0, symmetrise=symmetrise)
    edges = edges_of(source, 4096)
    assert source.num_edges_hint == edges.shape[1] == 5000 * 20 // (2 if symmetrise else 1)
    assert stored_count(edges, 5000, symmetrise=symmetrise) == 100_000
    assert source.provenance["symmetrise"] is symmetrise


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_edges_are_distinct_even_in_tiny_and_dense_graphs(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(3, 60))
    symmetrise = data.draw(st.booleans())
    reach = (num_nodes - 1) // 2 if symmetrise else num_nodes - 1
    num_edges = data.draw(st.integers(1, num_nodes * reach // 2))
    source = sbm_source(
        SbmSettings(
            num_nodes=num_nodes,
            num_classes=data.draw(st.integers(1, num_nodes)),
            num_features=0,
            num_edges=num_edges,
            homophily=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
            symmetrise=symmetrise,
            seed=data.draw(st.integers(0, 2**63 - 1)),
        )
    )
    edges = edges_of(source, data.draw(st.integers(1, 50)))
    assert edges.max() < num_nodes
    assert stored_count(edges, num_nodes, symmetrise=symmetrise) == num_edges * (2 if symmetrise else 1)


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("symmetrise", [True, False])
def test_smallest_graphs_can_be_half_full(num_nodes: int, symmetrise: bool) -> None:
    reach = (num_nodes - 1) // 2 if symmetrise else num_nodes - 1
    most = num_nodes * reach // 2
    for num_classes in range(1, num_nodes + 1):
        for num_edges in range(1, most + 1):
            source = sbm_source(
                SbmSettings(
                    num_nodes=num_nodes,
                    num_classes=num_classes,
                    num_features=0,
                    num_edges=num_edges,
                    symmetrise=symmetrise,
                )
            )
            stored = stored_count(edges_of(source, 100), num_nodes, symmetrise=symmetrise)
            assert stored == num_edges * (2 if symmetrise else 1)


@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.8, 1.0])
def test_homophily_is_as_requested(homophily: float) -> None:
    source = small(homophily=homophily)
    src, dst = column_of(source, "label")[edges_of(source, 1 << 20)]
    assert abs((src == dst).mean() - homophily) < 5 * np.sqrt(0.25 / src.size)


def test_degrees_are_skewed_and_alike_at_both_ends() -> None:
    source = small(num_nodes=50_000, average_degree=10.0)
    src, dst = edges_of(source, 1 << 20)
    out, into = np.bincount(src, minlength=50_000), np.bincount(dst, minlength=50_000)
    degrees = np.sort(out + into)[::-1]
    assert degrees[0] > 30 * degrees.mean()
    assert degrees[:500].sum() > 0.08 * degrees.sum()
    assert np.corrcoef(out, into)[0, 1] > 0.8


@pytest.mark.parametrize(("num_nodes", "num_classes"), [(10, 10), (11, 10), (1000, 70), (5000, 3), (50, 1)])
def test_every_class_has_a_node(num_nodes: int, num_classes: int) -> None:
    source = small(num_nodes=num_nodes, num_classes=num_classes, average_degree=2.0)
    sizes = np.bincount(column_of(source, "label"), minlength=num_classes)
    assert sizes.size == num_classes == source.num_classes
    assert sizes.sum() == num_nodes
    assert sizes.min() >= 1


def test_classes_are_uneven_and_not_sorted_by_id() -> None:
    labels = column_of(small(), "label")
    sizes = np.bincount(labels)
    assert sizes.max() > 3 * sizes.min()
    assert abs(np.corrcoef(np.arange(labels.size), labels)[0, 1]) < 0.06


def test_columns_do_not_depend_on_blocks() -> None:
    source = small()
    for name in ("label", "arrival"):
        assert np.array_equal(column_of(source, name, 61), column_of(source, name))


def test_classes_arrive_one_after_the_other() -> None:
    source = small(num_nodes=20_000, num_classes=10, periods=5)
    labels, arrivals = column_of(source, "label"), column_of(source, "arrival")
    assert set(arrivals.tolist()) == set(range(5))
    begins = labels * 5 // 10
    assert (arrivals >= begins).mean() > 0.9
    means = [arrivals[labels == label].mean() for label in range(10)]
    assert means[0] + 1 < means[5] < means[9]
    assert all((arrivals[labels == label] == label // 2).any() for label in range(10))


def accuracy_of_nearest_mean(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    train = np.arange(labels.size) % 2 == 0
    means = np.array([rows[train & (labels == label)].mean(axis=0) for label in range(labels.max() + 1)])
    scores = rows[~train] @ means.T - 0.5 * (means**2).sum(axis=1)
    return float((scores.argmax(axis=1) == labels[~train]).mean())


def test_dense_features_tell_the_classes_apart_as_much_as_asked() -> None:
    found = {}
    for signal in (0.0, 4.0, 8.0):
        source = small(num_features=64, signal=signal)
        assert isinstance(source.features, DenseSource)
        rows = np.concatenate(list(source.features.blocks(1 << 20)))
        assert rows.dtype == np.float32
        assert np.isfinite(rows).all()
        found[signal] = accuracy_of_nearest_mean(rows.astype(np.float64), column_of(source, "label"))
    assert found[0.0] < 0.4
    assert found[4.0] > 0.75
    assert found[8.0] > 0.97


def test_dense_features_do_not_depend_on_blocks() -> None:
    features = small().features
    assert isinstance(features, DenseSource)
    whole = np.concatenate(list(features.blocks(1 << 20)))
    assert whole.shape == (5000, 16)
    assert np.array_equal(whole, np.concatenate(list(features.blocks(999))))


def words_of(source: GraphSource, max_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    assert isinstance(source.features, SparseSource)
    counts, indices = [], []
    for block in source.features.blocks(max_rows):
        assert block.indptr[0] == 0
        assert block.indptr[-1] == block.indices.size == block.values.size
        assert (block.values == 1).all()
        counts.append(np.diff(block.indptr))
        indices.append(block.indices)
    return np.concatenate(counts), np.concatenate(indices).astype(np.int64)


def test_words_are_sorted_distinct_and_as_many_as_announced() -> None:
    source = small(num_features=900, sparse=True, words_per_node=20)
    counts, words = words_of(source, 1 << 20)
    assert isinstance(source.features, SparseSource)
    assert source.features.num_values == words.size == 5000 * 20
    assert counts.size == 5000
    assert 10 <= counts.min() < counts.max() <= 30
    assert words.min() >= 0
    assert words.max() < 900
    rows = np.repeat(np.arange(5000), counts)
    assert (np.diff(rows * 900 + words) > 0).all()
    other_counts, other_words = words_of(source, 77)
    assert np.array_equal(counts, other_counts)
    assert np.array_equal(words, other_words)


def test_a_row_may_use_half_of_the_vocabulary() -> None:
    source = small(num_nodes=200, average_degree=4.0, num_features=12, sparse=True, words_per_node=4, signal=1000.0)
    counts, words = words_of(source, 50)
    assert (np.diff(np.repeat(np.arange(200), counts) * 12 + words) > 0).all()


def test_words_tell_the_classes_apart() -> None:
    source = small(num_features=900, sparse=True, words_per_node=20)
    counts, words = words_of(source, 1 << 20)
    rows = np.zeros((5000, 900))
    rows[np.repeat(np.arange(5000), counts), words] = 1.0
    assert accuracy_of_nearest_mean(rows, column_of(source, "label")) > 0.8


def test_presets_have_the_published_counts() -> None:
    published = {  # nodes, stored directed edges, features, classes
        "corafull": (19_793, 126_842, 8_710, 70),
        "arxiv": (169_343, 1_166_243, 128, 40),
        "reddit": (232_965, 114_615_892, 602, 41),
        "products": (2_449_029, 123_718_280, 100, 47),
        "papers100m": (111_059_956, 1_615_685_872, 128, 172),
    }
    found = {name: (p.num_nodes, p.stored_edges, p.num_features, p.num_classes) for name, p in LIKE.items()}
    assert found == published
    assert [name for name, preset in LIKE.items() if preset.sparse] == ["corafull"]
    assert [name for name, preset in LIKE.items() if not preset.symmetrise] == ["arxiv", "papers100m"]
    assert {name: preset.labelled for name, preset in LIKE.items() if preset.labelled < 1} == {"papers100m": 0.01393}


@pytest.mark.parametrize("name", ["corafull", "arxiv"])
def test_generated_presets_match_the_published_graphs(name: str) -> None:
    source, preset = like_source(name, seed=1), LIKE[name]
    edges = edges_of(source, 1 << 18, threads=2)
    assert source.num_nodes == preset.num_nodes
    assert stored_count(edges, source.num_nodes, symmetrise=preset.symmetrise) == preset.stored_edges
    labels = column_of(source, "label")
    assert np.unique(labels).size == preset.num_classes == source.num_classes
    assert abs((labels[edges[0]] == labels[edges[1]]).mean() - preset.homophily) < 0.01
    assert source.features is not None
    assert source.features.num_features == preset.num_features


@pytest.mark.parametrize("name", ["reddit", "products"])
def test_large_presets_generate_any_block_of_theirs(name: str) -> None:
    source, preset = like_source(name), LIKE[name]
    assert source.num_edges_hint == preset.num_edges
    *_, before_last, last = (partial(source.edges.read, p.start, p.stop) for p in source.edges.cut(100_000))
    edges = np.concatenate([np.stack([b.src, b.dst]).astype(np.int64) for b in (before_last(), last())], axis=1)
    assert edges.max() < source.num_nodes
    assert stored_count(edges, source.num_nodes, symmetrise=True) == 2 * edges.shape[1]


@pytest.mark.parametrize("share", [0.2, 0.001])
def test_so_large_a_share_of_each_class_has_a_label_and_all_else_is_the_same(share: float) -> None:
    whole, partly = small(seed=3), small(seed=3, labelled=share)
    labels, known = column_of(whole, "label"), column_of(partly, "label")
    is_known = known >= 0
    np.testing.assert_array_equal(known[is_known], labels[is_known])
    sizes = np.bincount(labels)
    np.testing.assert_array_equal(np.bincount(known[is_known]), np.maximum(np.round(share * sizes), 1))
    np.testing.assert_array_equal(edges_of(whole, 1 << 20), edges_of(partly, 1 << 20))
    assert partly.features is not None
    assert whole.features is not None
    for one, other in zip(whole.features.blocks(512), partly.features.blocks(512), strict=True):
        np.testing.assert_array_equal(one, other)
    assert "labelled" not in whole.provenance
    assert partly.provenance["labelled"] == share


def test_labels_do_not_depend_on_the_blocks_they_are_drawn_in() -> None:
    source = small(seed=3, labelled=0.1)
    label = next(column for column in source.columns if column.name == "label")
    wanted = np.concatenate(list(label.blocks(1 << 20)))
    np.testing.assert_array_equal(np.concatenate(list(label.blocks(77))), wanted)


def test_labelled_nodes_have_the_degrees_of_the_others() -> None:
    source = small(seed=3, labelled=0.25)
    degrees = np.bincount(edges_of(source, 1 << 20).ravel(), minlength=source.num_nodes)
    is_known = column_of(source, "label") >= 0
    assert degrees[is_known].mean() == pytest.approx(degrees.mean(), rel=0.1)


def test_a_share_of_a_published_graph_has_its_density() -> None:
    source, preset = like_source("papers100m", share=0.001), LIKE["papers100m"]
    assert (source.num_nodes, source.num_edges_hint) == (111_060, 1_615_686)
    assert source.features is not None
    assert (source.features.num_features, source.num_classes) == (128, 172)
    labels = column_of(source, "label")
    assert np.count_nonzero(labels >= 0) == pytest.approx(preset.labelled * source.num_nodes, rel=0.05)
    for share in (0.0, 1.1, -1.0):
        with pytest.raises(UsageError, match="above 0, up to 1"):
            like_source("papers100m", share=share)


def test_seeds_give_different_graphs() -> None:
    one, two = small(seed=0), small(seed=1)
    assert (edges_of(one, 1 << 20) == edges_of(two, 1 << 20)).mean() < 0.01
    assert not np.array_equal(column_of(one, "label"), column_of(two, "label"))


@pytest.mark.parametrize(
    "bad",
    [
        {"num_nodes": 1},
        {"num_classes": 0},
        {"num_classes": 5001},
        {"num_features": -1},
        {"average_degree": 0.0},
        {"average_degree": float("nan")},
        {"average_degree": 4000.0},
        {"homophily": 1.5},
        {"signal": -1.0},
        {"periods": 0},
        {"seed": -1},
        {"num_edges": 0},
        {"sparse": True, "words_per_node": 6},
        {"labelled": 0.0},
        {"labelled": 1.5},
        {"labelled": float("nan")},
    ],
)
def test_arguments_out_of_range_are_usage_errors(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected"):
        small(**bad)


def test_unknown_preset_is_a_usage_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="corafull or arxiv or reddit or products or papers100m"):
        like_source("cora")
