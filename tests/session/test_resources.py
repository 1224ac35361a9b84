"""The limit on memory is read once: what a run fills itself is never held against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecgl_scale.base import memory
from ecgl_scale.base.memory import MemoryLimit
from ecgl_scale.session.run import run
from ecgl_scale.units import GIB, MIB
from tests.session.streams import FEW_EPOCHS, config_of


def test_a_run_that_fitted_is_not_refused_when_free_memory_falls(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joint training as a graph network loads one graph after the other, each of which looked at the limit anew."""
    found: list[int] = []

    def falling_limits() -> list[MemoryLimit]:
        found.append(16 * GIB if not found else MIB)
        return [MemoryLimit(found[-1], "a machine that fills")]

    monkeypatch.setattr(memory, "find_limits", falling_limits)
    keys = ("method=joint", "learn.train_as=gcn", FEW_EPOCHS)
    results = run(config_of(store, None, *keys), tmp_path / "run")
    assert found[0] == 16 * GIB
    assert results["num_tasks"] == 3
