"""A worker killed in each stage of growing a store and of learning in closed form.

Together with ``test_faults_workers`` that is every kind of work that is sent to workers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import WORKS
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.kron import kron_source
from tests.engine.cluster.conftest import ScriptedWorkers
from tests.faults.running import leftovers, run_cli
from tests.resources import at
from tests.session.streams import draw_graph, read_json, without_clocks, write_config, write_store

pytestmark = pytest.mark.faults

GROWING = ("ingest.features", "ingest.tiles", "append.older")
LEARNING = ("tasks.part_edges", "tasks.part_rows", "learn.class_sums")


def _grow(path: Path, resources: Resources) -> None:
    """A store whose tiles are written in an order of their own, that grows, and is made one again."""
    build_store(
        kron_source(scale=17, edge_factor=2, num_features=4),
        path,
        resources,
        options=BuildOptions(source_order="degree"),
    )
    random = np.random.default_rng(0)
    edges, x = random.integers(0, (1 << 17) + 90, (2, 4000)), random.random((90, 4), dtype=np.float32)
    append_store(array_source(edges, x=x, num_nodes=90, adds=True), path, resources)


def _bytes_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_workers_killed_while_a_store_is_built_grown_and_compacted_leave_the_same_files(
    workers: ScriptedWorkers, tmp_path: Path
) -> None:
    for stage in GROWING:
        workers.script.plan(stage, 0, ["kill"])
    for name, resources in (("alone", at()), ("workers", workers.resources)):
        _grow(tmp_path / name, resources)
    assert _bytes_of(tmp_path / "workers") == _bytes_of(tmp_path / "alone")
    assert {stage: workers.script.times_begun(stage, 0) >= 2 for stage in GROWING} == dict.fromkeys(GROWING, True)
    workers.script.begin()
    workers.script.plan("ingest.block", 0, ["kill"])
    for name, resources in (("alone", at()), ("workers", workers.resources)):
        compact_store(tmp_path / name, resources)
    assert _bytes_of(tmp_path / "workers") == _bytes_of(tmp_path / "alone")
    assert workers.script.times_begun("ingest.block", 0) == 2
    assert leftovers(tmp_path) == []


def test_workers_killed_while_a_graph_is_parted_and_classes_are_summed_change_no_result(
    workers: ScriptedWorkers, tmp_path: Path
) -> None:
    store = write_store(tmp_path / "store.ecgl", draw_graph())
    config = write_config(tmp_path / "run.yaml", store, method="analytic", analytic={"width": 64})
    address = workers.resources.executor.cluster.client.scheduler.address  # type: ignore[attr-defined]
    for stage in LEARNING:
        workers.script.plan(stage, 0, ["kill"])
    for name, where in (("alone", ()), ("workers", ("--scheduler", address))):
        ran = run_cli("--quiet", "run", config, "--out", tmp_path / name, *where)
        assert ran.code == 0, ran.stderr
    found, wanted = (without_clocks(read_json(tmp_path / name / "results.json")) for name in ("workers", "alone"))
    assert {name: value for name, value in found.items() if name != "workers"} == wanted
    assert (tmp_path / "workers/metrics.parquet").read_bytes() == (tmp_path / "alone/metrics.parquet").read_bytes()
    assert {stage: workers.script.times_begun(stage, 0) >= 2 for stage in LEARNING} == dict.fromkeys(LEARNING, True)
    assert not list(tmp_path.rglob("*.partial"))


def test_there_is_a_kill_in_every_kind_of_work() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_faults_*.py"))
    elsewhere = {
        "ingest.check",  # reads again what a killed ingest has written: tests/store/test_build_resume.py
        "store.live_edges",  # `ecgl drop` has no workers
        "sweep.run",  # tests/session/test_sweep_workers.py
    }
    assert {name for name in WORKS if f'"{name}"' not in text} == set()
    assert elsewhere <= WORKS.keys()
