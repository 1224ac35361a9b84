"""``ecgl report`` and ``ecgl status`` as typed, on made runs and on a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ecgl_scale.session.run import run as run_config
from tests.cli_runner import run_cli
from tests.report.made_runs import make_run
from tests.session.streams import config_of, draw_graph, write_store


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    store = write_store(folder / "graph.ecgl", draw_graph(300))
    run_config(config_of(store, None, "learn.epochs=3"), folder / "run")
    return folder / "run"


def test_the_terminal_shows_a_line_a_group(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    shown = run_cli("report", *runs, make_run(tmp_path / "joint", method="joint"))
    assert shown.code == 0
    head, ecgl, joint = shown.stdout.splitlines()
    assert head.split() == ["method", "store", "preset", "setting", "AA", "%", "AF", "%", "runs", "seconds", "peak"]
    assert ecgl.split()[:7] == ["ecgl", "graph", "plus", "class-il", "80.5", "±", "0.5"]
    assert joint.split()[5] == "-"


def test_a_reconstruction_is_called_so_but_keeps_its_name_for_programs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method) for method in ("dygrain", "ecgl")]
    lines = run_cli("report", *runs).stdout.splitlines()
    assert lines[1].startswith("dygrain (reconstruction)  graph")
    assert json.loads(run_cli("report", runs[0], "--json").stdout)["groups"][0]["method"] == "dygrain"


def test_json_has_the_groups_and_their_settings(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(budget), bank__budget=budget) for budget in (10, 20)]
    groups = json.loads(run_cli("report", *runs, "--json").stdout)["groups"]
    assert [group["settings"] for group in groups] == [{"bank.budget": 10}, {"bank.budget": 20}]
    assert groups[0]["accuracy"] == {"mean": 80.0, "deviation": 0.0, "count": 1}
    assert groups[0]["num_runs"] == 1


def test_a_folder_of_runs_stands_for_all_of_them_that_are_finished(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / "runs" / "method-ecgl" / str(seed), seed=seed)
    make_run(tmp_path / "runs" / "2", seed=2, is_finished=False)
    (tmp_path / "runs" / "method-ecgl" / "config.yaml").touch()  # a sweep leaves one with the seeds of a combination
    for folder in (tmp_path / "runs", tmp_path / "runs" / "method-ecgl"):
        groups = json.loads(run_cli("report", folder, "--json").stdout)["groups"]
        assert groups[0]["num_runs"] == 2
    assert "not the directory of a finished run" in run_cli("report", tmp_path / "runs" / "2").stderr


def test_a_page_and_figures_are_written_where_asked(tmp_path: Path, real_run: Path) -> None:
    page, figures = tmp_path / "new" / "page.html", tmp_path / "figures"
    shown = run_cli("report", real_run, "--html", page, "--figures", figures)
    assert shown.code == 0, shown.stderr
    assert f"report: {page}" in shown.stdout
    assert page.read_text().startswith("<!doctype html>")
    assert {path.suffix for path in figures.iterdir()} == {".svg", ".png", ".csv"}
    assert "Memory over time" in page.read_text()


def test_a_directory_that_is_no_run_is_exit_3(tmp_path: Path) -> None:
    for command in ("report", "status"):
        shown = run_cli(command, tmp_path)
        assert shown.code == 3
        assert str(tmp_path) in shown.stderr


def test_a_page_that_cannot_be_written_is_exit_3(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    assert run_cli("report", run, "--html", tmp_path / "file" / "page.html").code == 3


@pytest.mark.parametrize("place", [("--html", "page.html"), ("--figures", "figures"), ("--figures", "")])
def test_nothing_of_a_report_is_written_into_a_store(tmp_path: Path, place: tuple[str, str]) -> None:
    run, store = make_run(tmp_path / "a"), tmp_path / "graph.ecgl"
    assert run_cli("--quiet", "generate", "kron", store, "--scale", "4").code == 0
    refused = run_cli("report", run, place[0], store / place[1])
    assert (refused.code, refused.stdout) == (3, "")
    assert "into a store" in refused.stderr
    assert run_cli("--quiet", "verify", store).code == 0


def test_status_of_a_real_run_says_it_is_finished(real_run: Path) -> None:
    shown = run_cli("status", real_run, "--watch")
    assert shown.code == 0
    lines = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert lines["state"] == "finished"
    assert lines["tasks"] == "3 of 3 learned"
    assert "planned" in lines["memory"]
    assert json.loads(run_cli("status", real_run, "--json").stdout)["condition"] == "finished"


def test_status_of_a_killed_run_ends_with_the_command_to_go_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", is_finished=False)
    shown = run_cli("status", run)
    assert shown.stdout.splitlines()[-1].split(maxsplit=3)[3] == f"ecgl run {run}/config.yaml --out {run} --resume"


def test_a_real_run_leaves_samples_of_every_step_and_events_of_every_task(real_run: Path) -> None:
    lines = [json.loads(line) for line in (real_run / "memory.jsonl").read_text().splitlines()]
    assert lines[0]["version"] == 1
    assert {line["stage"] for line in lines[1:]} >= {"extract", "train", "remember", "evaluate"}
    assert all(line["anon_bytes"] > 0 for line in lines[1:])
    kinds = [json.loads(line)["event"] for line in (real_run / "events.jsonl").read_text().splitlines()]
    assert (kinds.count("TaskStarted"), kinds.count("TaskFinished"), kinds.count("StepStarted")) == (3, 3, 12)
    assert kinds[-1] == "RunStopped"
