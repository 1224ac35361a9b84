"""A store that has grown is read as if all had been ingested at once: rows, degrees, features, columns, counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import UsageError
from ecgl_scale.store.compose import generations_of, stored_blocks
from ecgl_scale.store.edges.plan import RANGE_ROWS, BuildOptions
from ecgl_scale.store.features.files import dense_matrix
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.verify import verify_store
from ecgl_scale.store.view import read_view
from tests.cli_runner import run_cli
from tests.grown_stores import ACROSS_RANGES, SMALL, make_both
from tests.resources import at

OPTIONS = {
    "directed": BuildOptions(),
    "symmetrised": BuildOptions(symmetrise=True),
    "duplicates and loops": BuildOptions(keep_duplicates=True, self_loops="keep"),
    "added loops": BuildOptions(symmetrise=True, self_loops="add"),
}


@pytest.fixture(scope="module", params=OPTIONS)
def both(request, tmp_path_factory):
    return make_both(tmp_path_factory.mktemp("both"), ACROSS_RANGES, options=OPTIONS[request.param])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_both(tmp_path_factory.mktemp("small"), SMALL, num_edges=200)


def test_rows_are_those_of_one_ingest(both):
    assert both.grown.num_edges == both.whole.num_edges
    np.testing.assert_array_equal(both.grown.to_edge_index(), both.whole.to_edge_index())
    assert both.grown.edges.id_dtype == both.whole.edges.id_dtype


def test_degrees_are_those_of_one_ingest(both):
    np.testing.assert_array_equal(both.grown.edges.in_degrees(), both.whole.edges.in_degrees())
    np.testing.assert_array_equal(both.grown.edges.out_degrees(), both.whole.edges.out_degrees())
    for node in (0, 59_999, 60_000, 65_535, 65_536, 65_599, 131_071, 131_072, 140_000):
        np.testing.assert_array_equal(both.grown.edges.in_neighbours(node), both.whole.edges.in_neighbours(node))


def test_blocks_begin_at_whole_ranges_and_cover_all_rows(both):
    blocks = both.grown.edges.blocks()
    assert [block.start % RANGE_ROWS for block in blocks] == [0] * len(blocks)
    assert [block.stop for block in blocks[:-1]] == [block.start for block in blocks[1:]]
    assert blocks[-1].stop == both.grown.num_nodes
    counts = [both.grown.edges.num_edges_of(block) for block in blocks]
    assert counts == [both.grown.edges.read(block).values.size for block in blocks]


def test_parts_of_a_block_are_its_rows(both):
    for block in both.grown.edges.blocks():
        rows, whole = both.grown.edges.rows(block), both.grown.edges.read(block)
        assert rows.num_edges == whole.values.size
        for first, stop in [(0, 1), (5, 900), (block.num_rows - 300, block.num_rows), (7, 7)]:
            part = rows.part(first, stop)
            wanted = whole.offsets[first : stop + 1]
            np.testing.assert_array_equal(np.diff(part.offsets), np.diff(wanted))
            found = part.values[part.offsets[0] : part.offsets[-1]]
            np.testing.assert_array_equal(found, whole.values[wanted[0] : wanted[-1]])
            assert rows.before(first) == wanted[0]
        some = np.random.default_rng(1).integers(0, block.num_rows, 500)
        chosen = rows.select(some)
        np.testing.assert_array_equal(np.diff(chosen.offsets), whole.offsets[some + 1] - whole.offsets[some])
        np.testing.assert_array_equal(rows.counts(some), np.diff(chosen.offsets))
        expected = [whole.values[whole.offsets[row] : whole.offsets[row + 1]] for row in some]
        np.testing.assert_array_equal(chosen.values, np.concatenate(expected))
        for edge in (0, 1, rows.num_edges // 2, rows.num_edges):
            assert rows.row_at(edge) == np.searchsorted(whole.offsets, edge)


def test_a_store_that_never_grew_merges_nothing(both):
    assert both.whole.edges.merge_bytes == 0
    assert both.whole.edges.reading_bytes(4) == 0
    assert both.grown.edges.merge_bytes > 0
    assert both.grown.edges.reading_bytes(2) > both.grown.edges.reading_bytes(1) > 0


def test_every_generation_opens_by_itself_and_has_what_was_there_then(both):
    for number, num_nodes in enumerate(ACROSS_RANGES):
        graph = GraphStore.open(both.grown.path, generation=number)
        assert (graph.generation, graph.num_nodes) == (number, num_nodes)
        again = GraphStore.open(graph.address)
        assert (again.generation, again.identity) == (number, graph.identity)
        assert graph.num_edges == graph.generations[-1].num_edges
        edge_index = graph.to_edge_index()
        assert edge_index.shape[1] == graph.num_edges
        assert edge_index.max() < num_nodes
        assert len(graph.column("year")) == num_nodes
    assert graph.new_nodes(0) == (ACROSS_RANGES[0], ACROSS_RANGES[-1])
    assert graph.new_nodes(graph.generation) == (ACROSS_RANGES[-1], ACROSS_RANGES[-1])


def test_the_first_generation_is_the_store_that_was_ingested(tmp_path, small):
    first = GraphStore.open(small.grown.path, generation=0)
    base = (small.grown.path / "generations/0000.json").read_bytes()
    assert json.loads(base)["num_nodes"] == first.num_nodes == SMALL[0]
    assert first.manifest == generations_of(small.grown.manifest)[0]
    identities = {GraphStore.open(small.grown.path, generation=number).identity for number in range(len(SMALL))}
    assert len(identities) == len(SMALL)


def test_a_generation_that_is_not_there_is_refused(small):
    with pytest.raises(UsageError, match="no generation 9"):
        GraphStore.open(small.grown.path, generation=9)
    with pytest.raises(UsageError, match="no generation 1"):
        GraphStore.open(f"{small.whole.path}#generation=1")
    with pytest.raises(UsageError, match="no generation 7"):
        small.grown.new_nodes(7)


def test_columns_and_classes_are_those_of_one_ingest(both):
    for name in ("year", "label"):
        np.testing.assert_array_equal(both.grown.column(name), both.whole.column(name))
    starts = [start for start, _ in both.grown.nodes.blocks("year")]
    assert starts[0] == 0
    assert starts[1:] == [60_000, 65_536, 65_600, 131_072]
    assert both.grown.num_classes == both.whole.num_classes


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_features_are_those_of_one_ingest(tmp_path, kind):
    made = make_both(tmp_path, ACROSS_RANGES, kind=kind, num_edges=100, width=9)
    grown, whole = made.grown.features, made.whole.features
    assert (grown.kind, grown.num_rows, grown.num_values) == (kind, whole.num_rows, whole.num_values)
    np.testing.assert_array_equal(dense_matrix(grown), dense_matrix(whole))
    ids = np.random.default_rng(0).integers(0, grown.num_rows, 3000)
    np.testing.assert_array_equal(grown.rows_dense(ids), whole.rows_dense(ids))
    assert grown.count_values(ids) == whole.count_values(ids)
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(grown.rows_csr(ids), name), getattr(whole.rows_csr(ids), name))
    matrix = dense_matrix(whole)
    for block in grown.blocks():
        assert grown.block_of(block.start) == grown.block_of(block.stop - 1) == block
        out = np.empty((block.num_rows, 4), np.float32)
        grown.read_columns(block, 2, 6, out)
        np.testing.assert_array_equal(out, matrix[block.start : block.stop, 2:6])
    streamed = [rows if kind == "dense" else grown.read_dense(block) for block, rows in grown.stream()]
    assert sum(len(rows) for rows in streamed) == grown.num_rows
    if kind == "dense":
        buffer = grown.chunk_buffer()
        for start, stop in [(0, 70_000), (59_990, 60_010), (65_599, 140_001)]:
            spans = [(row, rows.copy()) for row, rows in grown.read_span(start, stop, buffer, check=True)]
            np.testing.assert_array_equal(np.concatenate([rows for _, rows in spans]), matrix[start:stop])
            assert spans[0][0] == start
            grown.will_need(start, stop)


def test_a_grown_store_is_verified_by_threads_and_by_workers_that_share_nothing(tmp_path, both):
    report = verify_store(both.grown.path, at())
    assert (report.num_rows, report.num_edges) == (both.grown.num_nodes, both.grown.num_edges)
    assert verify_store(both.grown.path, at(executor=ScriptedExecutor(tmp_path))) == report
    first = verify_store(f"{both.grown.path}#generation=0", at())
    assert first.num_rows == ACROSS_RANGES[0]


def test_every_edge_has_one_place(small):
    blocks = stored_blocks(small.grown.manifest)
    assert sum(block.num_edges + block.num_older for block in blocks) == small.grown.num_edges
    assert len(blocks) == 1
    assert [piece.num_nodes for piece in blocks[0].older] == list(SMALL[1:])


def test_the_manifest_of_a_grown_store_adds_up(both):
    grown, whole = both.grown.manifest, both.whole.manifest
    for name in ("num_edges", "input_edges", "dropped_self_loops", "dropped_duplicates", "symmetrised", "self_loops"):
        assert getattr(grown.edges, name) == getattr(whole.edges, name), name
    assert set(grown.files) == {
        str(path.relative_to(both.grown.path))
        for path in both.grown.path.rglob("*")
        if path.is_file() and path.suffix != ".json" and not path.name.startswith(".")
    } | {name for name in grown.files if name.endswith("zarr.json")}


def test_what_an_append_left_over_disturbs_no_reader(tmp_path):
    made = make_both(tmp_path, SMALL, num_edges=100)
    for store, number in ((made.grown.path, len(SMALL)), (made.whole.path, 1)):
        for name in (f"generations/{number:04d}", f"generations/.{number:04d}.staging"):
            (store / name / "edges").mkdir(parents=True)
            (store / name / "edges/00000.arrow").write_bytes(b"half")
        (store / "generations/.lock").write_text("{}")
        assert GraphStore.open(store).num_nodes == SMALL[-1]
        verify_store(store, at())
    assert read_view(made.grown.path).generation == len(SMALL) - 1


def test_info_lists_the_generations_and_verify_takes_an_address(small):
    found = json.loads(run_cli("info", small.grown.path, "--json").stdout)
    assert [generation["num_nodes"] for generation in found["generations"]] == list(SMALL)
    assert found["generations"][3]["first_node"] == SMALL[2]
    assert found["num_edges"] == found["generations"][-1]["num_edges"] == small.grown.num_edges
    shown = run_cli("info", small.grown.path).stdout
    assert "generations" in shown
    assert f"4: {SMALL[-1]} nodes" in shown
    assert "generations" not in run_cli("info", small.whole.path).stdout
    older = json.loads(run_cli("info", f"{small.grown.path}#generation=1", "--json").stdout)
    assert older["num_nodes"] == SMALL[1]
    checked = json.loads(run_cli("verify", f"{small.grown.path}#generation=2", "--json").stdout)
    assert (checked["ok"], checked["num_rows"]) == (True, SMALL[2])
