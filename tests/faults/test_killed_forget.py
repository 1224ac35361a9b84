"""A forget that is killed at any rename, or while older versions go, leaves the old model or the new one."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.session.basis import Basis
from ecgl_scale.session.run import run
from tests.faults.running import run_cli, start_child
from tests.session.model_contents import ids_of
from tests.session.streams import config_of, draw_graph, write_store

pytestmark = pytest.mark.faults

SOME = np.arange(0, 300, 4)
NUM_RENAMES, NUM_REMOVALS = 10, 3


def die_at(name: str, number: int) -> None:
    """Let the process be killed when it calls a function of ``os`` for the n-th time, before anything happens."""
    real, calls = getattr(os, name), 0

    def dying(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(os, name, dying)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    store = write_store(folder / "graph.ecgl", draw_graph(300))
    run(config_of(store, None, "learn.epochs=1", "bank.budget=20"), folder / "model")
    np.save(folder / "nodes.npy", SOME)
    return folder


def test_killed_at_every_rename_and_removal_the_model_is_the_old_or_the_new_one(trained: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    asked = ("--quiet", "forget", model, "--nodes", trained / "nodes.npy", "--out", model)
    moments = [("replace", n + 1) for n in range(NUM_RENAMES)] + [("rename", 1)]
    moments += [("unlink", 40 + 2 * n) for n in range(NUM_REMOVALS)] + [("rmdir", 1)]
    ended = []
    for moment in moments:
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(trained / "model", model)
        child = start_child(die_at, moment, *asked)
        child.join(60)
        ended.append((*moment, child.exitcode))
        basis = Basis.open(model)
        is_new = basis.directory != model
        assert np.isin(basis.bank().node_ids, SOME).any() != is_new
        ran = run_cli(*asked)
        assert ran.code == 0, ran.stderr
        assert not set().union(*ids_of(model).values()) & set(SOME.tolist())
        assert len(list((model / "versions").iterdir())) == 1
    assert sum(code == -signal.SIGKILL for *_, code in ended) >= NUM_RENAMES
