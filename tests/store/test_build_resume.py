"""A build by workers that is stopped goes on with what is left, and leaves the same bytes as one that was not."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from ecgl_scale.engine import journal
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import InvalidInputError, StopRequestedError
from ecgl_scale.store import build
from ecgl_scale.store.build import build_store
from ecgl_scale.store.build_journal import BuildJournal
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.edges.write import BlockWork
from ecgl_scale.store.features import dense_write
from ecgl_scale.store.sources.edges import open_edge_files
from ecgl_scale.store.sources.kron import kron_source
from ecgl_scale.store.verify import verify_store
from tests.resources import at
from tests.store.graphs import bytes_of, random_edges
from tests.store.test_build_workers import NUM_NODES, SMALL, SYMMETRIC, WITH_LOOPS

WORKS = ("ingest.partition", "ingest.block", "ingest.features")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: SMALL)
    monkeypatch.setattr(dense_write, "BLOCK_BYTES", 1 << 20)


@pytest.fixture
def source(tmp_path):
    """Edges and features in files, so that both are read apart: 5 pieces, 3 blocks, 3 shards."""
    folder = tmp_path / "source"
    folder.mkdir()
    np.ascontiguousarray(random_edges(NUM_NODES, 5_000).T).astype("<u4").tofile(folder / "edges.u32")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(NUM_NODES, 4)).astype(np.float32))

    def reopen():
        return open_edge_files([folder / "edges.u32"], num_nodes=NUM_NODES, features=folder / "x.npy")

    return reopen


def counts(executor):
    return {
        work: [executor.times_run(work, int(path.name)) for path in sorted((executor.counts / work).glob("*"))]
        for work in (*WORKS, "ingest.check")
    }


STOPPED, LOST = StopRequestedError("stopped"), RuntimeError("the scheduler is gone")


@pytest.mark.parametrize(
    ("work", "index", "stop", "block_edges"),
    [
        ("ingest.partition", 1, LOST, 1_000),
        ("ingest.partition", 3, STOPPED, 50_000),  # a piece of edges, then four of self loops
        ("ingest.block", 1, STOPPED, 50_000),
        ("ingest.tiles", 1, STOPPED, 50_000),
        ("ingest.features", 1, LOST, 50_000),
    ],
)
def test_what_was_finished_is_not_done_again(tmp_path, source, monkeypatch, work, index, stop, block_edges):
    shares = replace(SMALL, block_edges=block_edges)
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: shares)
    options = SYMMETRIC if block_edges == 1_000 else WITH_LOOPS
    options = replace(options, source_order="degree" if work == "ingest.tiles" else "auto")
    build_store(source(), tmp_path / "wanted", at(), options=options)
    first = ScriptedExecutor(tmp_path / "first", failures={(work, index): [stop] * 3})
    with pytest.raises(type(stop)):
        build_store(source(), tmp_path / "store", at(executor=first), options=options)
    assert not (tmp_path / "store").exists()
    second = ScriptedExecutor(tmp_path / "second")
    build_store(source(), tmp_path / "store", at(executor=second), options=options)
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "wanted")
    for name in {*WORKS, work}:
        begun = {int(path.name) for path in (tmp_path / "first" / name).glob("*")} - {index if name == work else -1}
        again = {int(path.name) for path in (tmp_path / "second" / name).glob("*")}
        assert begun.isdisjoint(again)
        assert begun | again
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wanted", "store", "first", "second"}
    verify_store(tmp_path / "store", at())


def few_edges():
    """Three pieces, four blocks."""
    return kron_source(scale=18, edge_factor=1, num_features=4)


def build_and_be_killed(folder, shares, block):
    """In a child: every record is noted at once, and the process is gone in the middle of a block."""
    journal.EVERY_SECONDS = journal.MOST_OF_THE_TIME = 0.0
    build.MemoryShares.of = lambda *_, **__: shares
    run = BlockWork.run

    def run_until(self, found, given, scratch):
        if found.index == block:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, found, given, scratch)

    BlockWork.run = run_until
    build_store(few_edges(), folder / "store", at(executor=ScriptedExecutor(folder / "first")), options=SYMMETRIC)


def test_killed_in_a_block_it_goes_on_with_that_block(tmp_path, monkeypatch):
    shares = replace(SMALL, block_edges=100_000)
    arguments = (tmp_path, shares, 2)
    child = multiprocessing.get_context("forkserver").Process(target=build_and_be_killed, args=arguments)
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: shares)
    executor = ScriptedExecutor(tmp_path / "second")
    build_store(few_edges(), tmp_path / "store", at(executor=executor), options=SYMMETRIC)
    build_store(few_edges(), tmp_path / "wanted", at(), options=SYMMETRIC)
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "wanted")
    begun, again = ({path.name for path in (tmp_path / run / "ingest.block").glob("*")} for run in ("first", "second"))
    assert begun & again == {"2"}
    assert len(begun | again) == 4
    assert not list((tmp_path / "second" / "ingest.partition").glob("*"))


@pytest.mark.parametrize("damage", ["keys", "table", "gone", "block"])
def test_damaged_files_are_made_again(tmp_path, source, damage):
    build_store(source(), tmp_path / "wanted", at(), options=SYMMETRIC)
    first = ScriptedExecutor(tmp_path / "first", failures={("ingest.block", 2): [StopRequestedError("stopped")]})
    with pytest.raises(StopRequestedError):
        build_store(source(), tmp_path / "store", at(executor=first), options=SYMMETRIC)
    (staging,) = tmp_path.glob(".store.building-*")
    segment, block = staging / "segments-1000" / "1.keys", staging / "edges" / "00000.arrow"
    content = bytearray(segment.read_bytes())
    content[100 if damage == "keys" else -10] ^= 1
    if damage in ("keys", "table"):
        segment.write_bytes(content)
    elif damage == "gone":
        segment.unlink()
    else:
        os.truncate(block, 100)
    second = ScriptedExecutor(tmp_path / "second")
    build_store(source(), tmp_path / "store", at(executor=second), options=SYMMETRIC)
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "wanted")
    assert second.times_run("ingest.partition", 1) == (damage != "block")
    assert second.times_run("ingest.partition", 0) == 0
    assert second.times_run("ingest.block", 0) == (damage == "block")
    assert second.times_run("ingest.check", 1) == 1


@pytest.mark.parametrize("change", ["options", "edges", "features", "threads of this process"])
def test_another_build_begins_anew_and_removes_what_was_left(tmp_path, source, change):
    first = ScriptedExecutor(tmp_path / "first", failures={("ingest.block", 1): [StopRequestedError("stopped")]})
    with pytest.raises(StopRequestedError):
        build_store(source(), tmp_path / "store", at(executor=first), options=SYMMETRIC)
    (left,) = tmp_path.glob(".store.building-*")
    if change in ("edges", "features"):
        path = tmp_path / "source" / ("edges.u32" if change == "edges" else "x.npy")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    executor = None if change == "threads of this process" else ScriptedExecutor(tmp_path / "second")
    options = BuildOptions() if change == "options" else SYMMETRIC
    build_store(source(), tmp_path / "store", at(executor=executor), options=options)
    if executor is not None:
        assert executor.times_run("ingest.partition", 0) == 1
        assert executor.times_run("ingest.check", 0) == 0
    assert not left.exists()
    build_store(source(), tmp_path / "wanted", at(), options=options)
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "wanted")


def test_pieces_stay_as_large_as_they_were_unless_they_would_not_fit(tmp_path):
    journal = BuildJournal(tmp_path, "job")
    assert [journal.block_edges(wanted) for wanted in (1_000, 1_100, 900)] == [1_000] * 3
    assert journal.block_edges(800) == 800
    assert BuildJournal(tmp_path, "another").block_edges(900) == 900


def test_input_that_cannot_be_leaves_nothing(tmp_path, source):
    np.array([[0, NUM_NODES]], "<u4").tofile(tmp_path / "source" / "edges.u32")
    with pytest.raises(InvalidInputError, match="does not exist"):
        build_store(source(), tmp_path / "store", at(executor=ScriptedExecutor(tmp_path / "counts")))
    assert {path.name for path in tmp_path.iterdir()} == {"source", "counts"}


def test_shards_by_workers_that_fail_now_and_then_are_the_same(tmp_path, source):
    build_store(source(), tmp_path / "wanted", at())
    lost = OSError(116, "stale")
    executor = ScriptedExecutor(
        tmp_path / "counts",
        failures={("ingest.features", 0): [lost, lost]},
        after={("ingest.features", 2): lost},
    )
    build_store(source(), tmp_path / "store", at(executor=executor))
    assert counts(executor)["ingest.features"][:3] == [3, 1, 2]
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "wanted")
