"""A whole run, a ranking and an inference by workers that know their work from its description alone."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.session.infer import infer_store
from ecgl_scale.session.run import run
from tests.session.streams import FEW_EPOCHS, config_of

WORKS = (
    "ingest.partition",
    "ingest.block",
    "rank.sweep",
    "rank.diversity",
    "graph.propagate",
    "infer.layers",
    "evaluate.task",
)


def use(executor: ScriptedExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that is resolved from now on be done by this executor."""
    resolve = Resources.of

    def of(*arguments: Any, **named: Any) -> Resources:
        return resolve(*arguments, **{**named, "executor": executor})

    monkeypatch.setattr(Resources, "of", of)


def same_parts(results: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in results.items() if name not in ("stages", "config_digest")}


@pytest.mark.parametrize(
    "overrides",
    [
        ("bank.select=ecgl", "tasks.eval_scope=both"),
        ("bank.select=ecgl", "learn.features=propagated:2"),
        ("bank.select=ecgl", "learn.train_as=gcn", "tasks.inter_task_edges=true"),
        ("bank.select=herding",),
    ],
    ids=["both scopes", "propagated", "as a graph", "herding"],
)
def test_a_run_by_described_work_that_fails_now_and_then_has_the_same_results(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    keys = (FEW_EPOCHS, "threads=1", *overrides)
    wanted = run(config_of(store, None, *keys), tmp_path / "local")
    infer_store(tmp_path / "local", store, tmp_path / "local.parquet")
    script = ScriptedExecutor(
        tmp_path / "counts",
        failures={(work, 0): [OSError(errno.EIO, "disk")] for work in WORKS},
        after={(work, 1): RuntimeError("the worker was lost") for work in WORKS},
    )
    use(script, monkeypatch)
    found = run(config_of(store, None, *keys), tmp_path / "scripted")
    infer_store(tmp_path / "scripted", store, tmp_path / "scripted.parquet")
    assert same_parts(found) == same_parts(wanted)
    assert pq.read_table(tmp_path / "scripted.parquet").equals(pq.read_table(tmp_path / "local.parquet"))
    assert script.times_run("ingest.block", 0) >= 2
    ranked = "graph.propagate" if "bank.select=herding" in overrides else "rank.sweep"
    assert script.times_run(ranked, 0) >= 2
    is_tested_elsewhere = "learn.features=propagated:2" not in overrides
    assert [script.times_run("evaluate.task", index) for index in range(3)] == (
        [4, 3, 1] if is_tested_elsewhere else [0, 0, 0]
    )
    assert not list(tmp_path.rglob("*.partial"))
