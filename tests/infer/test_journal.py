"""An inference that is stopped, killed or finds its notes damaged ends with the same logits."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.events import BlockFinished
from ecgl_scale.engine import journal
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.layout import PassLayout, Planner
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling
from tests.infer.networks import layers_of, random_graph
from tests.resources import at

WIDTHS = (10, 16, 5)
SLICED = (PassLayout((0, 4, 8, 10), True), PassLayout((0, 5), False))
IN_FILES = (PassLayout((0, 10), True), PassLayout((0, 5), True))
CASES = {
    "memory": ({}, None),
    "files": ({}, IN_FILES),
    "slices": ({}, SLICED),
    "halo": ({"sources": "halo"}, None),
    "ldg": ({"partitioner": "ldg"}, None),
    "torch": ({"backend": "torch"}, None),
}


class StoppedError(Exception):
    """Raised by the test."""


@pytest.fixture(autouse=True)
def save_always(monkeypatch):
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g")


def infer(graph, work, *, stop_after=None, seed=0, widths=WIDTHS, scaling=None, memory=None, **chosen):
    def listen(event):
        if isinstance(event, BlockFinished) and event.done == stop_after:
            raise StoppedError

    settings = InferSettings(**{"backend": "numba", "partitions": 3, **chosen})
    layers = layers_of(*widths, seed=seed)
    return infer_logits(
        graph, layers, at(memory=memory, on_event=listen), settings=settings, scaling=scaling, work_directory=work
    )


def stop(graph, work, after, **settings):
    with pytest.raises(StoppedError):
        infer(graph, work, stop_after=after, **settings)


def lay_out(monkeypatch, passes):
    if passes is not None:
        find = Planner.find
        monkeypatch.setattr(Planner, "find", lambda self, room: replace(find(self, room), passes=passes))


@pytest.mark.parametrize("case", CASES)
def test_wherever_it_stops_it_goes_on_from_there(graph, tmp_path, monkeypatch, case):
    chosen, passes = CASES[case]
    lay_out(monkeypatch, passes)
    whole = infer(graph, tmp_path / "clean", **chosen)
    total = 3 * (5 if case == "slices" else 2)
    for after in range(1, total + 1):
        work = tmp_path / f"w{after}"
        stop(graph, work, after, **chosen)
        found = infer(graph, work, **chosen)
        assert found.resumed_partitions == after
        np.testing.assert_array_equal(found.logits, whole.logits)
        assert {path.name for path in work.iterdir()} <= {"matrix-1.rows"}


def test_prepared_rows_are_taken_over_too(tmp_path):
    graph = random_graph(tmp_path / "g", num_features=30, density=0.2, features="sparse")
    widths = (30, 8, 5)
    whole = infer(graph, tmp_path / "clean", widths=widths)
    for after in (1, 2, 4, 7):
        stop(graph, tmp_path / "w", after, widths=widths)
        found = infer(graph, tmp_path / "w", widths=widths)
        assert found.resumed_partitions == after
        np.testing.assert_array_equal(found.logits, whole.logits)


def test_stopped_again_and_again_it_loses_nothing(graph, tmp_path):
    whole = infer(graph, tmp_path / "clean")
    for after in (2, 3, 5):
        stop(graph, tmp_path / "w", after)
    found = infer(graph, tmp_path / "w")
    assert found.resumed_partitions == 5
    np.testing.assert_array_equal(found.logits, whole.logits)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"norm": "sum"},
        {"encoder": "sage"},
        {"bias_place": "outside"},
        {"partitions": 4},
        {"backend": "torch"},
        {"scaling": Scaling("row_l2")},
        {"sources": "halo"},
    ],
)
def test_another_inference_does_not_go_on_with_it(graph, tmp_path, other):
    stop(graph, tmp_path / "w", 4)
    found = infer(graph, tmp_path / "w", **other)
    assert found.resumed_partitions == 0
    np.testing.assert_array_equal(found.logits, infer(graph, tmp_path / "clean", **other).logits)


def test_another_store_does_not_go_on_with_it(graph, tmp_path):
    stop(graph, tmp_path / "w", 4)
    other = random_graph(tmp_path / "g", seed=1)
    assert infer(other, tmp_path / "w").resumed_partitions == 0


def test_a_smaller_budget_begins_anew(graph, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        find = Planner.find
        patched.setattr(Planner, "find", lambda self, room: replace(find(self, room), host_bytes=room))
        stop(graph, tmp_path / "w", 4)
    monkeypatch.setattr("ecgl_scale.infer.layerwise.own_memory_bytes", lambda: 1 << 33)
    found = infer(graph, tmp_path / "w", memory=(1 << 33) + (1 << 27))
    assert found.resumed_partitions == 0


@pytest.mark.parametrize(
    ("name", "resumed"),
    [("journal.json", 0), ("matrix-0.rows", 0), ("matrix-1.rows", 4)],
)
def test_damaged_notes_cost_only_what_they_hold(graph, tmp_path, name, resumed):
    whole = infer(graph, tmp_path / "clean")
    stop(graph, tmp_path / "w", 5)
    path = tmp_path / "w" / name
    content = bytearray(path.read_bytes())
    content[10 if name != "matrix-1.rows" else 0] ^= 1
    path.write_bytes(content)
    found = infer(graph, tmp_path / "w")
    assert found.resumed_partitions == resumed
    np.testing.assert_array_equal(found.logits, whole.logits)


@pytest.mark.parametrize("name", ["matrix-0.rows", "matrix-1.rows"])
@pytest.mark.parametrize("how", ["missing", "short"])
def test_missing_rows_are_made_again(graph, tmp_path, monkeypatch, name, how):
    whole = infer(graph, tmp_path / "clean")
    for passes in (None, IN_FILES):
        with monkeypatch.context() as patched:
            lay_out(patched, passes)
            stop(graph, tmp_path / "w", 5)
            path = tmp_path / "w" / name
            path.unlink() if how == "missing" else path.write_bytes(path.read_bytes()[:-4])
            found = infer(graph, tmp_path / "w")
        assert found.resumed_partitions < 5
        np.testing.assert_array_equal(found.logits, whole.logits)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"check": 1}', "{\n"])
def test_a_note_that_is_none_is_ignored(graph, tmp_path, text):
    stop(graph, tmp_path / "w", 4)
    (tmp_path / "w" / "journal.json").write_text(text)
    assert infer(graph, tmp_path / "w").resumed_partitions == 0


def test_a_quick_inference_writes_nothing(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "EVERY_SECONDS", 60.0)
    stop(graph, tmp_path / "w", 5)
    assert not (tmp_path / "w").exists()


def test_files_that_are_not_read_any_more_go(graph, tmp_path, monkeypatch):
    lay_out(monkeypatch, SLICED)
    kept = []
    for after in (3, 6, 10, 13):
        stop(graph, tmp_path / "w", after)
        kept.append(sorted(path.name for path in (tmp_path / "w").glob("matrix-*")))
    names = [f"matrix-{number}.rows" for number in range(5)]
    assert kept == [names[:1], names[:2], names[:4], names[3:5]]


def _infer_slowly(store: Path, work: Path) -> None:
    """In a child: save each partition, and leave time to be killed between any two."""
    journal.EVERY_SECONDS = 0.0
    infer_logits(
        GraphStore.open(store),
        layers_of(*WIDTHS),
        at(on_event=lambda event: time.sleep(0.02)),
        settings=InferSettings(backend="numba", partitions=20),
        work_directory=work,
    )


@pytest.mark.faults
def test_killed_at_any_moment_it_ends_with_the_same_logits(graph, tmp_path):
    whole = infer(graph, tmp_path / "clean", partitions=20)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ecgl_scale.infer.layerwise", "tests.infer.networks"])
    random = np.random.default_rng(0)
    resumed = []
    for number in range(3):
        work = tmp_path / f"w{number}"
        child = context.Process(target=_infer_slowly, args=(graph.path, work))
        child.start()
        deadline = time.monotonic() + 60
        while not (work / "journal.json").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(float(random.uniform(0, 0.5)))
        child.kill()
        child.join(60)
        assert child.exitcode in (-signal.SIGKILL, 0)
        note = work / "journal.json"
        saved = sum(map(len, json.loads(note.read_text())["crcs"].values())) if note.exists() else 0
        found = infer(graph, work, partitions=20)
        assert found.resumed_partitions == saved
        np.testing.assert_array_equal(found.logits, whole.logits)
        resumed.append(saved)
    assert any(resumed), "no kill came after a saved partition"
