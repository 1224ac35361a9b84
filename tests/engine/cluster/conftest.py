"""Two worker processes that follow a script, one pair for each file of tests: starting them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ecgl_scale.base.events import Event
from ecgl_scale.engine.cluster.entrance import with_workers
from ecgl_scale.engine.cluster.settings import ClusterSettings
from ecgl_scale.engine.resources import Resources
from tests.engine.cluster.script import Script
from tests.faults.running import run_cli


@dataclass(frozen=True)
class ScriptedWorkers:
    """Resources with two workers, and what happens to them."""

    resources: Resources
    script: Script
    events: list[Event]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedWorkers]:
    folder = tmp_path_factory.mktemp("cluster")
    script, events = Script(folder / "script"), list[Event]()
    script.begin()
    settings = ClusterSettings(workers=2, worker_memory="2GiB", worker_threads=1)
    own = Resources.of("2GiB", 1, on_event=events.append)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in script.environment.items():
            patch.setenv(name, value)
        with with_workers(settings, own, shared=[folder / "out"]) as resources:
            yield ScriptedWorkers(resources, script, events)


@pytest.fixture
def workers(two_workers: ScriptedWorkers) -> ScriptedWorkers:
    """The same with nothing planned and nothing counted."""
    two_workers.script.begin()
    two_workers.events.clear()
    return two_workers


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stripes, directed, with features."""
    path = tmp_path_factory.mktemp("store") / "graph.ecgl"
    made = run_cli(
        "--quiet", "generate", "kron", path, "--scale", 17, "--edge-factor", 2, "--features", 4, "--directed"
    )
    assert made.code == 0, made.stderr
    return path
