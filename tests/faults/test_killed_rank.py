"""A ranking that is killed, stopped or short of disk goes on where it was: the same file, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest

from tests.faults.running import leftovers, run_cli, start_child

pytestmark = pytest.mark.faults

NUM_KILLS = 3
OPTIONS = ("--tol", "1e-8", "--max-iter", "200")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stripes."""
    path = tmp_path_factory.mktemp("store") / "graph.ecgl"
    made = run_cli(
        "--quiet", "generate", "kron", path, "--scale", 17, "--edge-factor", 4, "--features", 8, "--directed"
    )
    assert made.code == 0, made.stderr
    return path


@pytest.fixture(scope="module")
def undisturbed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("clean") / "scores.parquet"
    ran = run_cli("--quiet", "rank", store, "--out", out, *OPTIONS)
    assert ran.code == 0, ran.stderr
    return out.read_bytes()


def _save_every_sweep(after_sweep_seconds: float) -> None:
    """In a child: save each sweep, and leave time to be killed between any two."""
    from ecgl_scale.engine import journal
    from ecgl_scale.rank import pagerank

    journal.EVERY_SECONDS = 0.0
    forget = pagerank._Sweeps.forget

    def slow(sweeps: pagerank._Sweeps, number: int) -> None:
        time.sleep(after_sweep_seconds)
        forget(sweeps, number)

    pagerank._Sweeps.forget = slow  # type: ignore[method-assign]


def _start(store: Path, out: Path) -> ForkServerProcess:
    return start_child(_save_every_sweep, (0.005,), "--quiet", "rank", store, "--out", out, *OPTIONS)


def _journal_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.journal") / "importance" / "journal.json"


def _wait_for_journal(out: Path, child: ForkServerProcess) -> None:
    deadline = time.monotonic() + 60
    while not _journal_of(out).exists() and child.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)


def _sweeps_saved(out: Path) -> int:
    return int(json.loads(_journal_of(out).read_text())["iteration"]) if _journal_of(out).exists() else 0


def _finish(store: Path, out: Path, undisturbed: bytes) -> int:
    """Run the command again; returns the sweep it went on from."""
    ran = run_cli("--quiet", "rank", store, "--out", out, *OPTIONS, "--json")
    assert ran.code == 0, ran.stderr
    assert out.read_bytes() == undisturbed
    assert leftovers(out.parent) == []
    return int(json.loads(ran.stdout)["importance"]["resumed_from"])


def test_killed_at_any_moment_a_ranking_goes_on_and_writes_the_same_file(
    store: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    out = tmp_path / "scores.parquet"
    resumed = []
    for _ in range(NUM_KILLS):
        child = _start(store, out)
        _wait_for_journal(out, child)
        time.sleep(float(rng.uniform(0, 0.6)))
        child.kill()
        child.join(60)
        if child.exitcode == 0:
            assert out.read_bytes() == undisturbed
        else:
            assert child.exitcode == -signal.SIGKILL
            assert not out.exists()
        saved = _sweeps_saved(out)
        resumed.append(_finish(store, out, undisturbed))
        assert resumed[-1] == saved
        out.unlink()
    assert any(resumed), "no kill came after a saved sweep"


def test_killed_again_and_again_in_one_ranking_it_still_ends_with_the_same_file(
    store: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    saved = [0]
    for _ in range(3):
        child = _start(store, out)
        deadline = time.monotonic() + 60
        while _sweeps_saved(out) < saved[-1] + 4 and child.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.002)
        child.kill()
        child.join(60)
        saved.append(_sweeps_saved(out))
    assert saved == sorted(set(saved)), "a kill lost sweeps that were saved"
    assert _finish(store, out, undisturbed) == saved[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_stopped_ranking_exits_with_75_and_goes_on(
    store: Path, undisturbed: bytes, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "scores.parquet"
    child = _start(store, out)
    _wait_for_journal(out, child)
    assert child.pid is not None
    os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == 75
    assert not out.exists()
    assert _finish(store, out, undisturbed) > 0


def test_a_ranking_of_another_store_or_setting_does_not_go_on_from_it(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    child = _start(store, out)
    _wait_for_journal(out, child)
    child.kill()
    child.join(60)
    ran = run_cli("--quiet", "rank", store, "--out", out, "--damping", 0.5, "--json")
    assert json.loads(ran.stdout)["importance"]["resumed_from"] == 0
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "kind",
    [
        "importance",
        "both",
    ],
)
def test_a_full_disk_at_the_end_leaves_the_old_file_and_the_journal(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from ecgl_scale.engine import journal
    from ecgl_scale.rank import scores

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    assert run_cli("--quiet", "rank", store, "--out", tmp_path / "wanted", "--kind", kind).code == 0
    out = tmp_path / "scores.parquet"
    out.write_bytes(b"old")
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(scores.pq, "ParquetWriter", refuse)
        ran = run_cli("--quiet", "rank", store, "--out", out, "--kind", kind)
    assert ran.code == 5, ran.stderr
    assert out.read_bytes() == b"old"
    ran = run_cli("--quiet", "rank", store, "--out", out, "--kind", kind, "--json")
    assert ran.code == 0, ran.stderr
    importance = json.loads(ran.stdout)["importance"]
    assert importance["resumed_from"] == importance["iterations"] > 0
    assert out.read_bytes() == (tmp_path / "wanted").read_bytes()
    assert leftovers(tmp_path) == []
