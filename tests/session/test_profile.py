"""``ecgl run --memray``: native allocations of a run in its directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ecgl_scale.session import profile, profile_page
from ecgl_scale.session.run_log import LOG_NAME
from tests.cli_runner import run_cli
from tests.faults.running import start_child
from tests.session.streams import write_config

KEYS = ("--set", "learn.epochs=1", "--set", "method=finetune")


@pytest.fixture
def config(store: Path, cache: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "run.yaml", store, cache=str(cache))


def test_a_run_leaves_its_allocations_and_their_flame_graph(config: Path, tmp_path: Path) -> None:
    memray = pytest.importorskip("memray", reason="memray is not installed")
    child = start_child(None, (), "run", config, "--out", tmp_path / "run", *KEYS, "--memray")
    child.join(280)
    assert child.exitcode == 0
    with memray.FileReader(tmp_path / "run" / "memray.bin") as reader:
        assert reader.metadata.has_native_traces
        functions = {
            frame[0]
            for record in reader.get_high_watermark_allocation_records(merge_threads=True)
            for frame in record.stack_trace()
        }
    assert "_learn_tasks" in functions
    page = (tmp_path / "run" / "memray.html").read_text(encoding="utf-8")
    assert page.lower().lstrip().startswith("<!doctype html>")
    assert "_learn_tasks" in page
    assert "c10::" in page, "no native frames"
    said = (tmp_path / "run" / LOG_NAME).read_text()
    assert "native allocations: " in said
    assert "no flame graph" not in said


def test_a_stack_that_memray_refuses_has_its_native_frames_alone() -> None:
    class Refused:
        size = 7

        def hybrid_stack_trace(self, *given: int) -> list[tuple[str, str, int]]:
            raise AssertionError

        def native_stack_trace(self, *given: int) -> list[tuple[str, str, int]]:
            return [("malloc", "c.so", 1)][: given[0]]

    record = profile_page._Record(Refused())
    assert record.size == 7
    assert record.hybrid_stack_trace(1) == [("malloc", "c.so", 1)]


def test_without_memray_the_run_is_refused_with_2_and_nothing_is_written(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "find_spec", lambda name: None)
    ran = run_cli("run", config, "--out", tmp_path / "run", *KEYS, "--memray")
    assert ran.code == 2
    assert "memray is not installed" in ran.stderr
    assert "ecgl-scale[profile]" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_without_a_flame_graph_the_allocations_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(sys, "executable", "/bin/false")
    profile.draw_profile(tmp_path, heard.append)
    assert "no flame graph" in str(heard)
