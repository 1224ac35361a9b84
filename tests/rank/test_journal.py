"""A ranking's journal gives back what was saved or nothing; a ranking that goes on from it ends with the same bits."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from ecgl_scale.errors import EcglError
from ecgl_scale.rank import journal as journal_module
from ecgl_scale.rank.journal import NAME, NoJournal, RankJournal
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.store.graph import GraphStore
from tests.resources import at
from tests.store.graphs import random_edges

WHO = {"store": [1, 2], "settings": {"damping": 0.85, "tol": None}, "pair": (1, 2)}
RANKS = np.random.default_rng(0).random(1000)


@pytest.fixture(autouse=True)
def save_every_sweep(monkeypatch):
    monkeypatch.setattr(journal_module, "SAVE_EVERY_SECONDS", 0.0)


@pytest.fixture
def folder(tmp_path):
    """A journal with two sweeps in it."""
    save(tmp_path / "journal", (RANKS, 6, 1e-3), (RANKS / 2, 7, 1e-4))
    return tmp_path / "journal"


def save(folder, *sweeps, identity=WHO):
    journal = RankJournal(folder, identity)
    journal.load(RANKS.size)
    for sweep in sweeps:
        journal.save(*sweep)
        journal.wait()
    journal.close()


def load(folder, identity=WHO, num_nodes=RANKS.size):
    journal = RankJournal(folder, identity)
    found = journal.load(num_nodes)
    journal.close()
    return found


def test_the_last_saved_sweep_comes_back(folder):
    found = load(folder)
    assert found is not None
    assert (found.iteration, found.residual) == (7, 1e-4)
    np.testing.assert_array_equal(found.ranks, RANKS / 2)


def test_nothing_is_there_before_the_first_save_and_no_directory_either(tmp_path):
    journal = RankJournal(tmp_path / "none", WHO)
    assert journal.load(5) is None
    journal.wait()
    journal.close()
    assert not (tmp_path / "none").exists()
    assert NoJournal().load(5) is None
    NoJournal().save(RANKS, 1, 0.5)
    NoJournal().wait()


@pytest.mark.parametrize("other", [{}, WHO | {"store": [1, 3]}, WHO | {"more": None}])
def test_sweeps_of_another_ranking_are_ignored(folder, other):
    assert load(folder, other) is None
    assert load(folder) is not None


def test_sweeps_of_a_store_of_another_size_are_ignored(folder):
    assert load(folder, num_nodes=RANKS.size - 1) is None


def newest(folder):
    return folder / json.loads((folder / NAME).read_text())["file"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone", "directory"])
def test_a_damaged_vector_is_ignored(folder, damage):
    path = newest(folder)
    content = bytearray(path.read_bytes())
    content[4321] ^= 8
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"flip": bytes(content), "cut": content[:-8], "empty": b""}[damage])
    assert load(folder) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", "{}", '"text"', '{"identity": 1}', '{"check": 0, "file": 5}', "\udcff"]
)
def test_a_journal_that_is_not_one_is_ignored(folder, text):
    (folder / NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert load(folder) is None


def test_each_line_of_the_entry_is_needed_and_each_number_is_checked(folder):
    entry = json.loads((folder / NAME).read_text())
    wrong = {"iteration": 8, "residual": 1e-12, "crc32c": entry["crc32c"] + 1, "file": "ranks-9", "check": 0}
    for name in entry:
        (folder / NAME).write_text(json.dumps({key: value for key, value in entry.items() if key != name}))
        assert load(folder) is None, name
    for name, value in wrong.items():
        (folder / NAME).write_text(json.dumps(entry | {name: value}))
        assert load(folder) is None, name
    (folder / NAME).write_text(json.dumps(entry))
    assert load(folder) is not None


def test_any_flipped_bit_of_the_entry_is_noticed_or_harmless(folder):
    content = (folder / NAME).read_bytes()
    for position in range(len(content)):
        for bit in range(0, 8, 3):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            (folder / NAME).write_bytes(flipped)
            found = load(folder)
            assert found is None or (found.iteration, found.residual) == (7, 1e-4)


def test_the_two_files_take_turns_so_a_kill_while_saving_keeps_the_older_sweep(folder, tmp_path):
    kept = newest(folder)
    # A kill during the save: the vector half written or written, but the entry not yet replaced.
    for content in (b"", RANKS.tobytes()[:4000], RANKS.tobytes()):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        other = copy / ({"ranks-0", "ranks-1"} - {kept.name}).pop()
        other.write_bytes(content)
        (copy / f".{NAME}.partial").write_text("{")
        found = load(copy)
        assert found is not None
        assert found.iteration == 7
    save(folder, (RANKS, 8, 1e-5))
    assert newest(folder) != kept
    assert load(folder).iteration == 8
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "ranks-0", "ranks-1"]


def test_at_every_fsync_of_a_save_the_older_or_the_newer_sweep_is_there(folder, tmp_path, monkeypatch):
    copies = []
    fsync = os.fsync

    def copying(descriptor: int) -> None:
        copies.append(shutil.copytree(folder, tmp_path / f"copy{len(copies)}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", copying)
    save(folder, (RANKS, 8, 1e-5))
    monkeypatch.undo()
    assert len(copies) == 3
    found = [load(copy) for copy in copies]
    assert [sweep.iteration for sweep in found if sweep is not None] == [7, 7, 8]


def test_sweeps_that_are_quick_are_not_all_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "SAVE_EVERY_SECONDS", 60.0)
    save(tmp_path / "journal", (RANKS, 1, 0.5))
    assert load(tmp_path / "journal") is None


def test_a_directory_that_cannot_be_made_is_told_when_waiting(tmp_path):
    (tmp_path / "file").write_text("")
    journal = RankJournal(tmp_path / "file" / "journal", WHO)
    journal.save(RANKS, 1, 0.5)
    with pytest.raises(EcglError, match="file"):
        journal.wait()
    journal.close()


# --- resuming a ranking


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    edges = random_edges(70_000, 20_000, seed=2)
    return GraphStore.from_edge_index(edges, path=tmp_path_factory.mktemp("graph") / "store", num_nodes=80_000)


def rank(graph, folder, max_iter, *, reset=None, norm="l1"):
    journal = RankJournal(folder, WHO)
    try:
        settings = PageRankSettings(tol=1e-5, max_iter=max_iter, norm=norm)
        return rank_importance(graph, at(threads=2), reset=reset, settings=settings, journal=journal)
    finally:
        journal.close()


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("stops", [[1], [5, 6, 17], [-1]])
def test_a_ranking_stopped_and_resumed_ends_with_the_same_bits(graph, tmp_path, with_reset, stops):
    reset = np.random.default_rng(3).random(graph.num_nodes) if with_reset else None
    whole = rank_importance(graph, at(), reset=reset, settings=PageRankSettings(tol=1e-5))
    done = 0
    for stop in [stop % whole.iterations for stop in stops]:  # near the end no later sweep hides a difference
        part = rank(graph, tmp_path, stop, reset=reset)
        assert (part.iterations, len(part.sweeps), part.converged) == (stop, stop - done, False)
        done = stop
    rest = rank(graph, tmp_path, 100, reset=reset)
    assert rest.converged
    assert (rest.iterations, len(rest.sweeps)) == (whole.iterations, whole.iterations - done)
    assert rest.residual == whole.residual
    assert rest.ranks.tobytes() == whole.ranks.tobytes()


def test_a_finished_ranking_is_not_swept_again(graph, tmp_path):
    first, second = rank(graph, tmp_path, 100), rank(graph, tmp_path, 100)
    assert (second.converged, second.sweeps, second.iterations) == (True, (), first.iterations)
    assert second.ranks.tobytes() == first.ranks.tobytes()


def test_a_damaged_journal_costs_time_but_not_the_result(graph, tmp_path):
    whole = rank_importance(graph, at(), settings=PageRankSettings(tol=1e-5))
    rank(graph, tmp_path, 9)
    content = bytearray(newest(tmp_path).read_bytes())
    content[-3] ^= 1
    newest(tmp_path).write_bytes(content)
    again = rank(graph, tmp_path, 100)
    assert len(again.sweeps) == whole.iterations
    assert again.ranks.tobytes() == whole.ranks.tobytes()
