"""How long a run will take: what makes it longer, and where it is shown. How good it is, bench/ shows."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import ecgl_scale.session.time.estimate as estimate_module
from ecgl_scale.base.memory import MemoryLimit
from ecgl_scale.base.stopwatch import best_seconds
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.run import run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.session.time.estimate import estimate
from ecgl_scale.session.time.machine import TYPICAL, MachineRates, measure_machine, num_weights
from tests.cli_runner import run_cli
from tests.resources import at
from tests.session.streams import Drawn, config_of, read_json, write_config, write_store


def timed(config: RunConfig, rates: MachineRates = TYPICAL) -> MemoryPlan:
    setup = RunSetup.open(config)
    return estimate(plan_run(setup), setup, rates)


def seconds_of(config: RunConfig, rates: MachineRates = TYPICAL) -> dict[str, float]:
    return {stage.stage: stage.seconds or 0.0 for stage in timed(config, rates).stages}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("method=joint",),
        ("method=finetune",),
        ("learn.train_as=gcn",),
        ("learn.features=propagated:1",),
        ("tasks.eval_scope=seen",),
        ("tasks.eval_scope=both", "tasks.evaluate=every:2"),
        ("tasks.eval_scope=both", "tasks.evaluate=last"),
        ("bank.select=random",),
        ("bank.select=herding",),
        ("bank.select=kmeans",),
    ],
    ids=" ".join,
)
def test_every_stage_of_every_kind_of_run_has_a_time(store: Path, overrides: tuple[str, ...]) -> None:
    plan = timed(config_of(store, None, *overrides))
    assert all(stage.seconds is not None and 0 < stage.seconds < 60 for stage in plan.stages)
    assert plan.seconds == pytest.approx(sum(seconds_of(config_of(store, None, *overrides)).values()))


def test_sparse_features_cost_by_their_values(drawn: Drawn, tmp_path: Path) -> None:
    def at(density: float) -> dict[str, float]:
        x = np.random.default_rng(0).random((900, 400)).astype(np.float32)
        path = write_store(tmp_path / f"{density}.ecgl", drawn, x=np.where(x < density, x, 0.0).astype(np.float32))
        return seconds_of(config_of(path, None))

    few, more = at(0.01), at(0.05)
    assert all(few[stage] < more[stage] for stage in ("train", "remember"))


def test_words_that_are_multiplied_first_take_a_closed_form_less_time(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (np.random.default_rng(1).random((len(drawn.x), 900)) < 0.01).astype(np.float32)
    store = write_store(tmp_path / "words.ecgl", drawn, x=words)
    config = config_of(store, None, "method=analytic", "analytic.width=512")
    first = seconds_of(config)
    monkeypatch.setattr(ModelInput, "on", lambda made, graph, *, keeps_zeros: made)
    last = seconds_of(config)
    assert 0 < first["train"] < last["train"]


def test_more_epochs_take_longer_and_only_in_training(store: Path) -> None:
    few, many = (seconds_of(config_of(store, None, f"learn.epochs={epochs}")) for epochs in (100, 1000))
    assert many["train"] > 5 * few["train"]
    assert {**many, "train": 0} == {**few, "train": 0}


@pytest.mark.parametrize(
    ("rate", "stages"),
    [
        ("read_bytes", {"extract"}),
        ("written_bytes", {"extract", "remember", "evaluate"}),
        ("edges", {"extract", "train", "remember", "evaluate"}),
        ("messages", {"remember", "evaluate"}),
        ("operations", {"train", "remember", "evaluate"}),
    ],
)
def test_a_machine_that_does_less_in_a_second_takes_longer_where_it_matters(
    store: Path, rate: str, stages: set[str]
) -> None:
    config = config_of(store, None, "bank.select=ecgl")
    slow = replace(TYPICAL, **{rate: getattr(TYPICAL, rate) / 100})
    fast, slower = seconds_of(config), seconds_of(config, slow)
    assert {stage for stage in fast if slower[stage] > fast[stage]} == stages


def test_herding_walks_over_rows_as_fast_as_over_edges(store: Path) -> None:
    config = config_of(store, None, "bank.select=herding")
    usual, by_operations, by_edges = (
        seconds_of(config, replace(TYPICAL, **{rate: getattr(TYPICAL, rate) / slower}))["remember"]
        for rate, slower in (("edges", 1), ("operations", 100), ("edges", 100))
    )
    assert usual == by_operations < by_edges


def test_what_does_not_fit_the_page_cache_is_read_from_the_disk_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, slow = config_of(store, None), replace(TYPICAL, read_bytes=TYPICAL.read_bytes / 100)
    cached = seconds_of(config, slow)
    monkeypatch.setattr(estimate_module, "tightest_limit", lambda: MemoryLimit(1000, "a small machine"))
    read = seconds_of(config, slow)
    assert all(read[stage] > cached[stage] for stage in ("train", "remember", "evaluate"))
    assert read["extract"] == cached["extract"]  # one pass over the store for the graphs of all tasks


def test_messages_of_narrow_features_are_sent_once_and_those_of_hidden_layers_in_every_epoch(store: Path) -> None:
    """The store has 16 features: below a hidden layer of 24 they are what is sent, and they never change."""

    def added(hidden: int) -> float:
        slow = replace(TYPICAL, messages=1e5)
        few, many = (
            seconds_of(config_of(store, None, "learn.train_as=gcn", f"learn.hidden=[{hidden}]", epochs), slow)["train"]
            for epochs in ("learn.epochs=10", "learn.epochs=20")
        )
        return many - few

    # 8 hidden and 6 output columns an edge, there and back, against the 6 alone.
    assert added(8) / added(24) == pytest.approx((8 + 6) / 6, rel=0.1)


def test_a_bank_holds_no_more_of_a_task_than_the_task_has(store: Path) -> None:
    """The store's tasks have 180 rows each to train on."""
    small, large, larger = (
        seconds_of(config_of(store, None, f"bank.budget={budget}"), replace(TYPICAL, operations=1e6))["train"]
        for budget in (40, 180, 5000)
    )
    assert small < large == larger


def test_a_method_that_ranks_nothing_takes_no_time_to_remember(store: Path) -> None:
    ranked, nothing = (
        seconds_of(config_of(store, None, f"method={name}"))["remember"] for name in ("ecgl", "finetune")
    )
    assert nothing < 0.01 < ranked


def test_a_task_is_tested_after_every_task_from_its_own_on(store: Path) -> None:
    two, three = (
        seconds_of(config_of(store, None, f"tasks.classes_per_task={size}"), replace(TYPICAL, edges=1e3))
        for size in (3, 2)
    )
    # All nodes once after the first task of two, both after the second: 1.5 times the graph; of three, 2 times.
    assert three["evaluate"] / two["evaluate"] == pytest.approx(2 / 1.5, rel=0.1)


def test_this_machine_is_measured_and_nothing_is_left(store: Path, tmp_path: Path) -> None:
    rates = measure_machine(tmp_path, [16, 24, 6], config_of(store, None), at(), num_nodes=900)
    assert all(getattr(rates, field.name) > 0 for field in fields(rates))
    assert list(tmp_path.iterdir()) == []


def test_where_the_store_cannot_be_written_to_the_disk_of_temporary_files_is_measured(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert measure_machine(Path("/proc"), [16, 24, 6], config_of(store, None), at(), num_nodes=9).written_bytes > 0


def test_the_best_of_three_rounds_counts_and_the_first_does_not() -> None:
    calls: list[int] = []
    assert best_seconds(lambda: calls.append(1), seconds=0.0) >= 0.0
    assert len(calls) == 4
    assert num_weights([3, 4, 5]) == 32


def test_plan_shows_times_as_an_estimate_and_leaves_the_folder_as_it_was(store: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", store)
    before = sorted(store.parent.iterdir())
    shown = run_cli("plan", config)
    assert shown.code == 0, shown.stderr
    head, *stages = shown.stdout.splitlines()
    assert head.split() == ["stage", "blocks", "memory", "device", "read", "written", "passes", "time"]
    assert all(" ~ " in line for line in stages[:4])
    assert all(len(line) <= 80 for line in [head, *stages[:4]])
    assert [line.partition(":")[0] for line in stages[4:8]] == [f"need of {line.split()[0]}" for line in stages[:4]]
    assert "an estimate from a measurement of this machine" in stages[-1]
    found = json.loads(run_cli("plan", config, "--json").stdout)
    assert found["seconds"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]))
    assert sorted(store.parent.iterdir()) == before


def test_a_short_run_does_not_measure_the_machine_and_a_long_one_keeps_what_it_found(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(store, cache, "learn.epochs=1", "method=finetune")
    run(config, tmp_path / "short")
    assert read_json(tmp_path / "short" / "plan.json")["seconds"] is None
    monkeypatch.setattr(estimate_module, "LONG_SECONDS", 0.0)
    run(config, tmp_path / "long")
    plan = read_json(tmp_path / "long" / "plan.json")
    assert plan["seconds"] > 0
    assert all(stage["seconds"] > 0 for stage in plan["stages"])
