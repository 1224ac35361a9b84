"""Importance equals the naive twin and three libraries; its bits depend on no thread, piece or way of reading."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.rank import tile_stream
from ecgl_scale.rank.degrees import out_degrees
from ecgl_scale.rank.pagerank import EXACT_NODES, PageRankSettings, plan_importance, rank_importance
from ecgl_scale.store.edges import plan as edge_plan
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB
from tests import naive
from tests.resources import at
from tests.store.graphs import random_edges

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = {
    "amazon_computers": 13_752,
    "amazon_photo": 7_650,
    "coauthor_cs": 18_333,
    "cora_ml": 2_995,
    "pubmed_planetoid": 19_717,
    "cora25k_nofeat": 25_120,
    "cnr2000_web": 325_557,
    "debian_packages": 93_649,
}
EXACT = PageRankSettings(tol=1e-12, max_iter=300)
CLOSE = PageRankSettings(tol=1e-9, max_iter=300)


def store_of(path, edges, num_nodes, **settings):
    edge_index = np.array(edges, np.int64).reshape(-1, 2).T
    return GraphStore.from_edge_index(edge_index, path=path, num_nodes=num_nodes, **settings)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One stripe; hubs, loops, repeated edges, dangling and isolated nodes."""
    edges = random_edges(400, 1500, seed=4)
    return GraphStore.from_edge_index(edges, path=tmp_path_factory.mktemp("small") / "store", num_nodes=500)


@pytest.fixture(scope="module", params=[1, 32], ids=["one wide stripe", "four stripes"])
def wide(tmp_path_factory, request):
    """More than three source ranges, the last one short; edges enough for rows with thousands of them."""
    num_nodes = 3 * 65_536 + 1234
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_plan, "MIN_BLOCKS", request.param)
        edges = random_edges(num_nodes, 300_000, seed=5)
        path = tmp_path_factory.mktemp("wide") / "store"
        graph = GraphStore.from_edge_index(edges, path=path, num_nodes=num_nodes)
    assert len(graph.tiles.blocks()) == (1 if request.param == 1 else 4)
    return graph


def by_scipy(edge_index, num_nodes, *, damping=0.85, reset=None, dangling="uniform", tol=1e-11):
    """Power iteration on a csr matrix."""
    from scipy import sparse

    source, target = edge_index
    degrees = np.bincount(source, minlength=num_nodes)
    share = np.divide(1.0, degrees, out=np.zeros(num_nodes), where=degrees > 0)
    matrix = sparse.csr_matrix((share[source], (target, source)), shape=(num_nodes, num_nodes))
    uniform = np.full(num_nodes, 1 / num_nodes)
    reset = uniform if reset is None else reset / reset.sum()
    jump = uniform if dangling == "uniform" else reset
    ranks = uniform
    for _ in range(500):
        new = damping * (matrix @ ranks + ranks[degrees == 0].sum() * jump) + (1 - damping) * reset
        change, ranks = abs(new - ranks).sum(), new
        if change < tol:
            break
    return ranks


# --- equal to others


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 40))
    ids = st.integers(0, draw(st.integers(0, num_nodes - 1)))
    edges = draw(st.lists(st.tuples(ids, ids), max_size=80))
    reset = draw(
        st.none() | st.lists(st.floats(0, 10), min_size=num_nodes, max_size=num_nodes).filter(lambda r: sum(r) > 1e-3)
    )
    return num_nodes, edges, reset


@settings(max_examples=30)
@given(
    graph=graphs(),
    damping=st.sampled_from([0.0, 0.5, 0.85]),
    dangling=st.sampled_from(["uniform", "reset"]),
    symmetrise=st.booleans(),
)
@example(graph=(1, [], None), damping=0.85, dangling="uniform", symmetrise=False)
@example(graph=(1, [(0, 0), (0, 0)], [3.0]), damping=0.85, dangling="reset", symmetrise=True)
@example(graph=(5, [], [0.0, 1, 0, 0, 2]), damping=0.85, dangling="reset", symmetrise=False)
@example(graph=(4, [(0, 1), (0, 1), (0, 2), (1, 1)], None), damping=0.0, dangling="uniform", symmetrise=False)
def test_importance_equals_the_naive_twin(tmp_path_factory, graph, damping, dangling, symmetrise):
    num_nodes, edges, reset = graph
    options = BuildOptions(symmetrise=symmetrise, keep_duplicates=True, self_loops="keep")
    store = store_of(tmp_path_factory.mktemp("any") / "store", edges, num_nodes, options=options)
    stored, _, _ = naive.stored_edges(edges, num_nodes, symmetrise=symmetrise, keep_duplicates=True, self_loops="keep")
    result = rank_importance(
        store,
        at(),
        reset=None if reset is None else np.array(reset),
        settings=PageRankSettings(damping, tol=1e-13, max_iter=600, dangling=dangling),
    )
    wanted = naive.pagerank(stored, num_nodes, damping=damping, reset=reset, dangling=dangling)
    assert result.converged
    np.testing.assert_allclose(result.ranks, wanted, rtol=0, atol=1e-11)
    assert math.isclose(math.fsum(result.ranks), 1.0, abs_tol=1e-12)


@pytest.mark.parametrize(("with_reset", "dangling"), [(False, "uniform"), (True, "reset")])
def test_several_stripes_and_ranges_give_what_scipy_gives(wide, with_reset, dangling):
    reset = np.random.default_rng(1).random(wide.num_nodes) if with_reset else None
    result = rank_importance(wide, at(), reset=reset, settings=replace(CLOSE, dangling=dangling))
    wanted = by_scipy(wide.to_edge_index(), wide.num_nodes, reset=reset, dangling=dangling)
    assert abs(result.ranks - wanted).sum() < 1e-8


def real_edges(name):
    path = SHARED / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"the real data is not here: {path}")
    with np.load(path, allow_pickle=False) as content:
        return content["edge_index"].astype(np.int64)


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL)
def test_a_real_graph_is_ranked_as_by_networkx_scipy_and_igraph(tmp_path, name):
    igraph, networkx = pytest.importorskip("igraph"), pytest.importorskip("networkx")
    num_nodes, edge_index = REAL[name], real_edges(name)
    graph = GraphStore.from_edge_index(edge_index, path=tmp_path / "store", num_nodes=num_nodes)
    stored = graph.to_edge_index()
    reset = np.random.default_rng(2).random(num_nodes)

    to_reset = rank_importance(graph, at(), reset=reset, settings=replace(CLOSE, dangling="reset"))
    assert to_reset.converged
    assert abs(to_reset.ranks - by_scipy(stored, num_nodes, reset=reset, dangling="reset")).sum() < 1e-8
    # prpack sends dangling mass where restarts go.
    twin = igraph.Graph(n=num_nodes, edges=memoryview(np.ascontiguousarray(stored.T)), directed=True)
    by_igraph = twin.personalized_pagerank(damping=0.85, reset=reset, implementation="prpack")
    assert abs(to_reset.ranks - np.array(by_igraph)).sum() < 1e-8

    plain = rank_importance(graph, at(), settings=CLOSE)
    assert abs(plain.ranks - by_scipy(stored, num_nodes)).sum() < 1e-8
    # One weighted edge for repeated ones, as a DiGraph holds no two; networkx reads the weight as a count.
    codes, counts = np.unique(stored[0] * num_nodes + stored[1], return_counts=True)
    digraph = networkx.DiGraph()
    digraph.add_nodes_from(range(num_nodes))
    digraph.add_weighted_edges_from(
        zip((codes // num_nodes).tolist(), (codes % num_nodes).tolist(), counts.tolist(), strict=True)
    )
    found = networkx.pagerank(digraph, 0.85, tol=1e-9 / num_nodes, max_iter=500)
    assert abs(plain.ranks - np.array([found[i] for i in range(num_nodes)])).sum() < 1e-8


# --- the same bits


def bits(graph, threads=None, **given):
    settings = PageRankSettings(max_iter=8, tol=0.0)
    return rank_importance(graph, at(threads=threads), settings=settings, **given).ranks.tobytes()


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_gives_the_same_bits(wide, threads):
    reset = np.random.default_rng(1).random(wide.num_nodes)
    assert bits(wide, threads=threads, reset=reset) == bits(wide, threads=1, reset=reset)


@pytest.mark.parametrize("is_resident", [True, False], ids=["mapped", "direct"])
def test_any_size_of_piece_gives_the_same_bits(wide, monkeypatch, is_resident):
    wanted = bits(wide)
    monkeypatch.setattr(tile_stream, "_is_resident", lambda values: is_resident)
    for piece_bytes in (1 << 16, 1 << 19, 3 << 18):
        monkeypatch.setattr(tile_stream, "PIECE_BYTES", piece_bytes)
        assert bits(wide) == wanted, piece_bytes


def test_mapped_and_direct_reading_give_the_same_bits(wide, monkeypatch):
    found, read = [], []
    for is_resident in (True, False):
        monkeypatch.setattr(tile_stream, "_is_resident", lambda values, answer=is_resident: answer)
        result = rank_importance(wide, at(threads=2), settings=PageRankSettings(max_iter=3))
        found.append(result.ranks.tobytes())
        read.append([sweep.read_bytes for sweep in result.sweeps])
    assert found[0] == found[1]
    assert read[0] == [0, 0, 0]
    stored_bytes = sum(wide.tiles.path(block).stat().st_size for block in wide.tiles.blocks())
    assert all(4 * wide.num_edges <= count <= stored_bytes + 2 * 4096 * 4 for count in read[1])


def test_pieces_of_any_size_and_way_of_reading_hold_the_edges_in_order(wide, monkeypatch):
    for is_resident in (True, False):
        monkeypatch.setattr(tile_stream, "_is_resident", lambda values, answer=is_resident: answer)
        for piece_bytes in (1 << 14, 4100, 16 * MIB):
            monkeypatch.setattr(tile_stream, "PIECE_BYTES", piece_bytes)
            stream = tile_stream.TileStream(wide.tiles, threads=2)
            for is_expected in (True, False):
                for block in wide.tiles.blocks():
                    if is_expected:
                        stream.expect(block)
                        stream.expect(block)
                    found: list[np.ndarray] = []
                    for piece in stream.pieces(block):
                        stream.expect(block)  # too late: it is being read
                        assert piece.first_edge == sum(part.size for part in found)
                        found.append(piece.packed.copy())
                    np.testing.assert_array_equal(np.concatenate(found), wide.tiles.read(block).values)
            stream.close()


def test_nobody_waits_for_ever_when_the_reader_of_pieces_stops_early(wide):
    stream = tile_stream.TileStream(wide.tiles, threads=1)
    pieces = stream.pieces(wide.tiles.blocks()[0])
    assert next(pieces).first_edge == 0
    stream.expect(wide.tiles.blocks()[-1])
    pieces.close()
    stream.close()


def test_pages_that_were_just_read_are_resident(tmp_path):
    graph = store_of(tmp_path / "store", random_edges(1000, 50_000).T, 1000)
    values = graph.tiles.read(graph.tiles.blocks()[0]).values
    assert int(values.sum()) > 0
    assert tile_stream._is_resident(values)
    assert tile_stream._is_resident(values[:0])


# --- precision


def test_float32_sums_are_within_1e_7_of_each_rank_and_reach_1e_8(wide):
    exact = rank_importance(wide, at(), settings=PageRankSettings(tol=1e-10, max_iter=300)).ranks
    single = PageRankSettings(precision="float32")
    rounded = rank_importance(wide, at(), settings=single)
    assert rounded.converged
    error = abs(rounded.ranks - exact)
    assert 0 < error.max() < 1e-8
    assert error.sum() < 4 * 2**-24 / (1 - 0.85)
    assert {rank_importance(wide, at(threads=n), settings=single).ranks.tobytes() for n in (1, 3)} == {
        rounded.ranks.tobytes()
    }


def test_precision_follows_the_size_unless_it_is_chosen():
    auto = PageRankSettings()
    assert [auto.precision_for(n) for n in (1, EXACT_NODES, EXACT_NODES + 1)] == ["float64", "float64", "float32"]
    assert PageRankSettings(precision="float64").precision_for(EXACT_NODES + 1) == "float64"
    with pytest.raises(UsageError, match="float16"):
        PageRankSettings(precision="float16")


# --- stopping


@pytest.mark.parametrize(("norm", "order"), [("l1", 1), ("l2", 2)])
def test_it_stops_at_the_first_sweep_that_changes_less_than_the_tolerance(small, norm, order):
    result = rank_importance(small, at(), settings=PageRankSettings(tol=1e-6, norm=norm))
    assert result.converged
    assert result.residual == result.sweeps[-1].residual < 1e-6
    assert all(sweep.residual >= 1e-6 for sweep in result.sweeps[:-1])
    assert [sweep.iteration for sweep in result.sweeps] == [*range(1, result.iterations + 1)]
    before = rank_importance(small, at(), settings=PageRankSettings(tol=0, max_iter=result.iterations - 1)).ranks
    change = np.linalg.norm(result.ranks - before, order)
    assert math.isclose(result.residual, change, rel_tol=1e-6)


def test_the_l2_norm_is_smaller_so_it_stops_no_later(small):
    by_l1, by_l2 = (rank_importance(small, at(), settings=PageRankSettings(norm=norm)) for norm in ("l1", "l2"))
    assert by_l2.iterations < by_l1.iterations


def test_the_cap_on_sweeps_holds_and_the_result_says_so(small):
    result = rank_importance(small, at(), settings=PageRankSettings(tol=1e-12, max_iter=3))
    assert (result.converged, result.iterations, len(result.sweeps)) == (False, 3, 3)
    assert result.residual > 1e-12
    assert math.isclose(math.fsum(result.ranks), 1.0, abs_tol=1e-12)


def test_a_start_near_the_end_needs_few_sweeps(small):
    cold = rank_importance(small, at(), settings=EXACT)
    warm = rank_importance(small, at(), start=cold.ranks * 7, settings=PageRankSettings(tol=1e-10))
    assert warm.iterations <= 2 < cold.iterations
    np.testing.assert_allclose(warm.ranks, cold.ranks, rtol=0, atol=1e-11)


def test_any_start_leads_to_the_same_ranks(small):
    start = np.zeros(small.num_nodes)
    start[3] = 1.0
    np.testing.assert_allclose(
        rank_importance(small, at(), start=start, settings=EXACT).ranks,
        rank_importance(small, at(), settings=EXACT).ranks,
        rtol=0,
        atol=1e-12,
    )


def test_the_vectors_given_are_left_as_they_were(small):
    reset, start = np.arange(small.num_nodes) + 1.0, np.ones(small.num_nodes)
    rank_importance(small, at(), reset=reset, start=start)
    np.testing.assert_array_equal(reset, np.arange(small.num_nodes) + 1.0)
    np.testing.assert_array_equal(start, 1.0)


def test_each_sweep_is_told_to_whoever_listens(small):
    events = []
    result = rank_importance(small, at(on_event=events.append))
    assert isinstance(events[0], StageStarted)
    assert [event.done for event in events if isinstance(event, BlockFinished)] == [*range(1, result.iterations + 1)]


@pytest.mark.parametrize("symmetrise", [False, True])
def test_out_degrees_are_counted_and_padded(tmp_path, symmetrise):
    options = BuildOptions(symmetrise=symmetrise, keep_duplicates=True, self_loops="keep")
    edges = random_edges(70_000, 5000)
    graph = GraphStore.from_edge_index(edges, path=tmp_path / "store", num_nodes=70_000, options=options)
    degrees = out_degrees(graph)
    assert (degrees.size, degrees.dtype) == (2 * 65_536, np.uint32)
    np.testing.assert_array_equal(degrees[:70_000], graph.edges.out_degrees())
    assert not degrees[70_000:].any()


# --- refusals


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"damping": 1.0}, "damping is 1.0"),
        ({"damping": -0.1}, "damping is -0.1"),
        ({"damping": math.nan}, "damping is nan"),
        ({"tol": -1e-9}, "tol is -1e-09"),
        ({"tol": math.nan}, "tol is nan"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"norm": "max"}, "norm is 'max'"),
        ({"dangling": "drop"}, "dangling 'drop'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, named):
    with pytest.raises(UsageError, match=re.escape(named)):
        PageRankSettings(**wrong)


@pytest.mark.parametrize("name", ["reset", "start"])
@pytest.mark.parametrize(
    "vector",
    [np.ones(499), np.ones((500, 1)), np.zeros(500), -np.ones(500)]
    + [np.where(np.arange(500) == 7, wrong, 1.0) for wrong in (-1e-9, math.nan, math.inf, -math.inf)],
    ids=["short", "matrix", "zero", "all negative", "one negative", "nan", "inf", "-inf"],
)
def test_a_vector_that_is_no_distribution_is_refused(small, name, vector):
    with pytest.raises(UsageError, match=name):
        rank_importance(small, at(), **{name: vector})


def test_a_budget_below_the_need_is_refused_with_one_that_works(wide):
    with pytest.raises(DoesNotFitError) as refused:
        rank_importance(wide, at(memory=16 * MIB, threads=2))
    assert "16 MiB" in str(refused.value)
    size = re.search(r"--memory (\d+MiB)", str(refused.value))
    assert size is not None
    # A little more, as other tests of this process may have left more memory in use meanwhile.
    enough = f"{int(size[1][:-3]) + 4}MiB"
    assert rank_importance(wide, at(memory=enough, threads=2)).converged


def test_the_plan_counts_vectors_by_whole_ranges():
    auto = PageRankSettings()
    with_reset = plan_importance(65_537, auto, with_reset=True, threads=1)
    without = plan_importance(65_537, auto, with_reset=False, threads=1)
    assert with_reset - without == 2 * 65_536 * 8
    assert plan_importance(65_537, auto, with_reset=False, threads=2) - without == 2 * 16 * MIB + 65_536 * 8
    single = plan_importance(65_537, PageRankSettings(precision="float32"), with_reset=False, threads=1)
    assert without - single == 2 * 65_536 * 8 + 65_536 * 4
    above = plan_importance((1 << 22) + 65_536, auto, with_reset=False, threads=1)
    assert above - plan_importance((1 << 22) + 1, auto, with_reset=False, threads=1) == 0


def test_a_ranking_stays_within_its_plan(wide):
    from ecgl_scale.base.memory import PeakSampler

    rank_importance(wide, at(), settings=PageRankSettings(max_iter=1))  # what is compiled stays
    reset = np.random.default_rng(1).random(wide.num_nodes)
    held = own_memory_bytes()
    with PeakSampler(0.001) as sampler:
        rank_importance(wide, at(threads=2), reset=reset)
    assert sampler.peak_bytes - held <= plan_importance(wide.num_nodes, PageRankSettings(), with_reset=True, threads=2)


def test_no_warning_is_given_for_a_graph_without_edges(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = rank_importance(store_of(tmp_path / "store", [], 3), at())
    assert (result.ranks.tolist(), result.iterations) == ([1 / 3] * 3, 1)
