"""A refusal names what to change and to what; whoever takes the advice gets a plan that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.session.plan.remedy import require_fit
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.units import GIB, MIB
from tests.session.streams import config_of, draw_graph, write_store

LARGE_BANK = ("bank.budget=4000", "bank.select=random")
BLOCKS = ("learn.hidden=[1024]", "learn.block_rows=16384")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("large") / "graph.ecgl", draw_graph(60_000, num_features=128))


def roomy() -> str:
    """A GiB on top of what this process holds: tests before this one may have left it a GiB large itself."""
    return f"memory={own_memory_bytes() + GIB}"


def changed(config: RunConfig, *overrides: str) -> RunConfig:
    return config_from_mapping(config.to_mapping(), overrides=overrides)


def planned(config: RunConfig) -> MemoryPlan:
    return plan_run(RunSetup.open(config))


def checked(config: RunConfig) -> None:
    setup = RunSetup.open(config)
    require_fit(plan_run(setup), setup)


CASES = [
    ("train", ("method=finetune", *BLOCKS), "learn.block_rows=64"),
    ("train", (*LARGE_BANK, *BLOCKS), "learn.block_rows=64"),
    ("train", ("learn.train_as=gcn", "method=finetune", "learn.hidden=[256]"), "learn.train_as=mlp"),
    ("train", ("bank.budget=80000", "bank.select=random", "threads=1", "learn.block_rows=16"), "bank.budget=5000"),
]


@pytest.mark.parametrize(("stage", "overrides", "remedy"), CASES, ids=[f"{case[0]} {case[2]}" for case in CASES])
def test_the_setting_and_the_memory_that_a_refusal_names_both_fit(
    large: Path, stage: str, overrides: tuple[str, ...], remedy: str
) -> None:
    config = config_of(large, None, *overrides, roomy())
    plan, better = planned(config), planned(changed(config, remedy))
    assert max(plan.stages, key=lambda one: one.host_bytes).stage == stage
    assert plan.peak_bytes - better.peak_bytes > 20 * MIB, "the case is none: the remedy does little"
    tight = changed(config, f"memory={(plan.peak_bytes + better.peak_bytes) // 2}")
    with pytest.raises(DoesNotFitError) as refused:
        checked(tight)
    assert refused.value.what.startswith(f"{stage} needs ")
    named = re.fullmatch(
        r"give at least --memory (\d+MiB), or --set (([\w.]+)=\w+)( \(which changes what is learned\))?",
        str(refused.value.fix),
    )
    assert named is not None, refused.value.fix
    assert named[3] == remedy.partition("=")[0]
    checked(changed(tight, f"memory={named[1]}"))
    checked(changed(tight, named[2]))


def test_settings_that_keep_the_results_are_named_before_those_that_do_not(large: Path) -> None:
    config = config_of(large, None, *LARGE_BANK, *BLOCKS, roomy())
    tight = changed(config, f"memory={planned(config).peak_bytes - 40 * MIB}")
    with pytest.raises(DoesNotFitError, match=r"or --set learn.block_rows=\d+$"):
        checked(tight)


@pytest.mark.parametrize(("stage", "overrides"), [("train", ("method=finetune",)), ("remember", ("bank.select=ecgl",))])
def test_where_no_setting_is_enough_only_the_memory_is_named(
    store: Path, stage: str, overrides: tuple[str, ...]
) -> None:
    config = config_of(store, None, "memory=16MiB", *overrides)
    with pytest.raises(DoesNotFitError) as refused:
        checked(config)
    assert refused.value.what.startswith(f"{stage} needs ")
    named = re.fullmatch(r"give at least --memory (\d+MiB)", str(refused.value.fix))
    assert named is not None
    checked(changed(config, f"memory={named[1]}"))


def test_memory_that_is_for_someone_else_is_added(store: Path) -> None:
    config = config_of(store, None, "memory=16MiB")
    setup = RunSetup.open(config)
    plan = plan_run(setup)
    named = []
    for besides in (0, GIB):
        with pytest.raises(DoesNotFitError) as refused:
            require_fit(plan, setup, besides_bytes=besides)
        found = re.search(r"--memory (\d+)MiB", str(refused.value))
        assert found is not None
        named.append(int(found[1]))
    assert named[1] - named[0] == pytest.approx(1024, abs=16)


def test_what_planning_itself_leaves_in_memory_is_not_asked_for(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the advice does so in a new process."""
    config = config_of(large, None, "method=finetune", *BLOCKS, f"memory={own_memory_bytes() + 128 * MIB}")
    setup, asked = RunSetup.open(config), []
    first = plan_run(setup)
    for left in (0, 50 * MIB):
        with monkeypatch.context() as patch:
            patch.setattr(
                "ecgl_scale.session.plan.run_plan.own_memory_bytes", lambda left=left: own_memory_bytes() + left
            )
            with pytest.raises(DoesNotFitError) as refused:
                require_fit(first, setup)
        asked.append(int(re.search(r"--memory (\d+)MiB", refused.value.fix or "")[1]))  # type: ignore[index]
    assert asked[1] - asked[0] < 10
