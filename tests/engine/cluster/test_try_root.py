"""A directory is good for a cluster where every worker reads what is written here, and the other way round."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ecgl_scale.engine.cluster.try_root import try_root
from ecgl_scale.units import MIB


def test_workers_that_see_the_directory_have_no_problem_and_leave_nothing(tmp_path: Path) -> None:
    def run_on_all(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
        return {"b": function(*arguments), "a": function(*arguments)}

    found = try_root(tmp_path, run_on_all, 4 * MIB)
    assert [(one.worker, one.problem) for one in found] == [("a", ""), ("b", "")]
    assert all(one.report is not None and one.report.rename for one in found)
    assert not list(tmp_path.iterdir())


def test_a_worker_that_sees_another_directory_is_named(tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    other.mkdir()

    def run_on_all(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
        blind = function(str(other), *arguments[1:])
        (other / arguments[1]).write_text("something old")
        stale = function(str(other), *arguments[1:])
        shutil.copy(shared / arguments[1], other)
        one_way = function(str(other), *arguments[1:])
        return {"blind": blind, "one way": one_way, "stale": stale}

    found = {one.worker: one for one in try_root(shared, run_on_all, 4 * MIB)}
    assert "No such file" in found["blind"].problem
    assert found["blind"].report is None
    assert found["one way"].problem == "what it writes is not seen here"
    assert found["stale"].problem == "sees an old file where a new one was written"
    assert not list(shared.iterdir())
