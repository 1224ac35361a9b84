"""A journal of vectors gives back what was saved or nothing; a ranking that goes on from it ends with the same bits."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.events import BlockFinished
from ecgl_scale.engine import journal as journal_module
from ecgl_scale.engine.journal import NOTE_NAME, VectorJournal
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import EcglError
from ecgl_scale.rank import pagerank
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.store.graph import GraphStore
from tests.resources import at
from tests.store.graphs import random_edges

WHO = {"store": [1, 2], "settings": {"damping": 0.85, "tol": None}, "pair": (1, 2)}
RANKS = np.random.default_rng(0).random(1000)
CUTS = [0, 300, 1000]


@pytest.fixture(autouse=True)
def save_every_sweep(monkeypatch):
    monkeypatch.setattr(journal_module, "EVERY_SECONDS", 0.0)


@pytest.fixture(params=["arrays", "places"])
def kind(request):
    """Whether vectors are saved as arrays, or as files that blocks have filled."""
    return request.param


@pytest.fixture
def folder(tmp_path, kind):
    """A journal with two sweeps in it."""
    save(tmp_path / "journal", (RANKS, 6, 1e-3), (RANKS / 2, 7, 1e-4), kind=kind)
    return tmp_path / "journal"


def save(folder, *sweeps, kind="arrays"):
    journal = VectorJournal(folder, WHO)
    journal.load(RANKS.size)
    for ranks, iteration, residual in sweeps:
        assert journal.is_due
        vector = ranks
        if kind == "places":
            vector = journal.place(CUTS)
            for start, stop in pairwise(CUTS):
                vector.write(start, ranks[start:stop])
        journal.save(vector, {"iteration": iteration, "residual": residual})
        journal.wait()
    journal.close()


def load(folder, identity=WHO, num_nodes=RANKS.size):
    """Iteration, residual and ranks."""
    journal = VectorJournal(folder, identity)
    found = journal.load(num_nodes)
    journal.close()
    return None if found is None else (found[1]["iteration"], found[1]["residual"], found[0])


def test_the_last_saved_sweep_comes_back(folder):
    found = load(folder)
    assert found is not None
    assert found[:2] == (7, 1e-4)
    np.testing.assert_array_equal(found[2], RANKS / 2)


def test_nothing_is_there_before_the_first_save_and_no_directory_either(tmp_path):
    journal = VectorJournal(tmp_path / "none", WHO)
    assert journal.load(5) is None
    journal.wait()
    journal.close()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("other", [{}, WHO | {"store": [1, 3]}, WHO | {"more": None}])
def test_sweeps_of_another_ranking_are_ignored(folder, other):
    assert load(folder, other) is None
    assert load(folder) is not None


def test_sweeps_of_a_store_of_another_size_are_ignored(folder):
    assert load(folder, num_nodes=RANKS.size - 1) is None


def newest(folder):
    """The file with the last rows of the newest vector."""
    entry = json.loads((folder / NOTE_NAME).read_text())
    if "file" in entry:
        return folder / entry["file"]
    return max(Path(entry["place"]["directory"]).iterdir(), key=lambda path: int(path.stem))


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
    (folder / NOTE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert load(folder) is None


def test_each_line_of_the_entry_is_needed_and_each_number_is_checked(folder):
    entry = json.loads((folder / NOTE_NAME).read_text())
    wrong = {"iteration": 8, "residual": 1e-12, "check": 0}
    wrong |= {"file": "vector-9", "crc32c": 1} if "file" in entry else {"place": entry["place"] | {"cuts": [0, 1000]}}
    for name in entry:
        (folder / NOTE_NAME).write_text(json.dumps({key: value for key, value in entry.items() if key != name}))
        assert load(folder) is None, name
    for name, value in wrong.items():
        (folder / NOTE_NAME).write_text(json.dumps(entry | {name: value}))
        assert load(folder) is None, name
    (folder / NOTE_NAME).write_text(json.dumps(entry))
    assert load(folder) is not None


def test_any_flipped_bit_of_the_entry_is_noticed_or_harmless(folder):
    content = (folder / NOTE_NAME).read_bytes()
    for position in range(len(content)):
        for bit in range(0, 8, 3):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            (folder / NOTE_NAME).write_bytes(flipped)
            found = load(folder)
            assert found is None or found[:2] == (7, 1e-4)


def test_the_two_files_take_turns_so_a_kill_while_saving_keeps_the_older_sweep(tmp_path):
    folder = tmp_path / "journal"
    save(folder, (RANKS, 6, 1e-3), (RANKS / 2, 7, 1e-4))
    kept = newest(folder)
    # A kill during the save: the vector half written or written, but the entry not yet replaced.
    for content in (b"", RANKS.tobytes()[:4000], RANKS.tobytes()):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        other = copy / ({"vector-0", "vector-1"} - {kept.name}).pop()
        other.write_bytes(content)
        (copy / f".{NOTE_NAME}.partial").write_text("{")
        found = load(copy)
        assert found is not None
        assert found[0] == 7
    save(folder, (RANKS, 8, 1e-5))
    assert newest(folder) != kept
    assert load(folder)[0] == 8
    assert sorted(path.name for path in folder.iterdir()) == [NOTE_NAME, "vector-0", "vector-1"]


@pytest.mark.parametrize("then", ["arrays", "places"])
def test_a_new_vector_never_takes_the_place_of_the_one_that_the_note_names(folder, then):
    assert load(folder)[0] == 7
    kept = newest(folder).read_bytes()
    journal = VectorJournal(folder, WHO)
    journal.load(RANKS.size)
    half = journal.place(CUTS)
    half.write(0, RANKS[:300])  # and then the kill
    journal.close()
    assert load(folder)[0] == 7
    assert newest(folder).read_bytes() == kept
    save(folder, (RANKS, 8, 1e-5), kind=then)
    save(folder, (RANKS / 3, 9, 1e-6), kind=then)
    found = load(folder)
    assert found[0] == 9
    np.testing.assert_array_equal(found[2], RANKS / 3)
    assert sorted(path.name for path in folder.iterdir()) == [NOTE_NAME, "vector-0", "vector-1"]


def test_at_every_fsync_of_a_save_the_older_or_the_newer_sweep_is_there(folder, kind, tmp_path, monkeypatch):
    copies = []
    fsync = os.fsync

    def copying(descriptor: int) -> None:
        copies.append(shutil.copytree(folder, tmp_path / f"copy{len(copies)}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", copying)
    save(folder, (RANKS, 8, 1e-5), kind=kind)
    monkeypatch.undo()
    assert len(copies) == {"arrays": 3, "places": 5}[kind]  # files, in places also their directory; the note, as a copy
    found = []
    for copy in copies:
        text = (copy / NOTE_NAME).read_text()
        entry = json.loads(text.replace(str(folder), str(copy)))
        del entry["check"]
        journal_module.write_sealed(copy / NOTE_NAME, entry)
        found.append(load(copy))
    assert [sweep[0] for sweep in found if sweep is not None] == [7] * (len(copies) - 1) + [8]


def test_sweeps_that_are_quick_are_not_all_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "EVERY_SECONDS", 60.0)
    assert not VectorJournal(tmp_path / "journal", WHO).is_due


def test_a_directory_that_cannot_be_made_is_told_when_waiting(tmp_path):
    (tmp_path / "file").write_text("")
    journal = VectorJournal(tmp_path / "file" / "journal", WHO)
    journal.save(RANKS, {"iteration": 1, "residual": 0.5})
    with pytest.raises(EcglError, match="file"):
        journal.wait()
    journal.close()


# --- resuming a ranking


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    edges = random_edges(70_000, 20_000, seed=2)
    return GraphStore.from_edge_index(edges, path=tmp_path_factory.mktemp("graph") / "store", num_nodes=80_000)


def rank(graph, folder, max_iter, *, reset=None, executor=None, work=None):
    journal = VectorJournal(folder, WHO)
    try:
        settings = PageRankSettings(tol=1e-5, max_iter=max_iter)
        resources = at(threads=2, executor=executor, work=work)
        return rank_importance(graph, resources, reset=reset, settings=settings, journal=journal)
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


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("order", [("scripted", "local"), ("local", "scripted"), ("scripted", "scripted")])
def test_a_ranking_that_was_killed_goes_on_with_another_executor(graph, tmp_path, order):
    reset = np.random.default_rng(3).random(graph.num_nodes)
    whole = rank_importance(graph, at(), reset=reset, settings=PageRankSettings(tol=1e-5))
    executors = {"scripted": ScriptedExecutor(tmp_path / "counts"), "local": None}

    def stop_at_nine(event):
        if isinstance(event, BlockFinished) and event.done == 9:
            raise StoppedError

    journal = VectorJournal(tmp_path / "journal", WHO)
    resources = at(on_event=stop_at_nine, executor=executors[order[0]], work=tmp_path / "work")
    with pytest.raises(StoppedError):
        rank_importance(graph, resources, reset=reset, settings=PageRankSettings(tol=1e-5), journal=journal)
    journal.close()
    rest = rank(graph, tmp_path / "journal", 100, reset=reset, executor=executors[order[1]], work=tmp_path / "work")
    assert (rest.iterations, len(rest.sweeps)) == (whole.iterations, whole.iterations - 9)
    assert rest.ranks.tobytes() == whole.ranks.tobytes()
    done = rank(graph, tmp_path / "journal", 100, reset=reset, executor=executors[order[0]], work=tmp_path / "work")
    assert done.sweeps == ()
    assert done.ranks.tobytes() == whole.ranks.tobytes()
    assert not list((tmp_path / "work").rglob("*.rows")) or order[1] == "local"


def test_a_sweep_that_takes_long_is_kept_though_none_was_due_when_it_began(graph, tmp_path, monkeypatch):
    sweep, kept = pagerank._Sweeps.sweep, []

    def sweep_and_tell(self, keep):
        kept.append(keep)
        return sweep(self, keep)

    monkeypatch.setattr(pagerank, "EVERY_SECONDS", 0.0)  # so that any sweep is long
    monkeypatch.setattr(pagerank._Sweeps, "sweep", sweep_and_tell)
    monkeypatch.setattr(VectorJournal, "is_due", property(lambda self: bool(kept)))
    assert rank(graph, tmp_path, 1).iterations == 1
    assert kept == [None]
    assert load(tmp_path, num_nodes=2 * 65_536)[0] == 1
