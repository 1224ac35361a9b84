"""Keys and values of a config that are refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from ecgl_scale.config.method_sections import method_names
from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.errors import UsageError

MINIMAL = {"store": "graph.ecgl"}


def refused(mapping: dict[str, Any], *overrides: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        config_from_mapping(mapping, overrides=overrides, where="run.yaml")
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("learn.epoch", "learn.epochs"),
        ("learn.lamda", "learn.lambda"),
        ("learn.lambda_", "learn.lambda"),
        ("learns.epochs", "learn"),
        ("epochs", "learn.epochs"),
        ("epoch", "learn.epochs"),
        ("bank.damping", "rank.damping"),
        ("stores", "store"),
        ("norm", "rank.norm or infer.norm"),
    ],
)
def test_an_unknown_key_is_named_in_full_with_the_nearest_one(key: str, near: str) -> None:
    error = refused(MINIMAL, f"{key}=1")
    top = key.partition(".")[0]
    assert error.what.startswith("there is no key " + (top if top == "learns" else key))
    assert error.fix == f"did you mean {near}?"
    assert error.where == f"--set {key}=1"


def test_an_unknown_key_unlike_any_other_gets_the_list() -> None:
    error = refused({**MINIMAL, "rank": {"zzz": 1}})
    assert (error.what, error.where, error.fix) == ("there is no key rank.zzz", "run.yaml", None)
    assert error.expected is not None
    assert error.expected.startswith("in rank: damping, gamma")


def test_a_key_that_is_no_text_is_unknown() -> None:
    assert refused({**MINIMAL, 5: 1}).what == "there is no key 5"  # type: ignore[dict-item]
    assert "learn.5" in refused({**MINIMAL, "learn": {5: 1}}).what


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learn.epochs=0", "integer >= 1"),
        ("learn.epochs=2.5", "integer >= 1"),
        ("learn.epochs='5'", "integer >= 1"),
        ("learn.epochs=true", "integer >= 1"),
        ("learn.epochs=", "integer >= 1"),
        ("learn.lr=0", "number > 0"),
        ("learn.lr=fast", "number > 0"),
        ("learn.lr=.nan", "number > 0"),
        ("learn.lr=.inf", "number > 0"),
        ("learn.dropout=1", "number >= 0 and < 1"),
        ("learn.lambda=-1", "number >= 0"),
        ("learn.hidden=256", "list of integers >= 1"),
        ("learn.hidden=[0]", "list of integers >= 1"),
        ("learn.features=propagated", "raw or propagated:K with K from 1 to 99"),
        ("learn.features=propagated:0", "raw or propagated:K with K from 1 to 99"),
        ("learn.device=gpu", "auto, cpu, cuda or cuda:N"),
        ("learn.bias=maybe", "true or false"),
        ("learn.block_rows=0", "integer >= 1 or null"),
        ("bank.budget=-1", "integer >= 0"),
        ("bank.diversity_ratio=1.5", "number >= 0 and <= 1"),
        ("rank.damping=1", "number >= 0 and < 1"),
        ("rank.gamma=0", "number > 0 or null"),
        ("infer.partitions=0", "auto or integer >= 1"),
        ("infer.partitions=many", "auto or integer >= 1"),
        ("tasks.classes_per_task=0", "integer >= 1"),
        ("tasks.fractions=[1, 0]", "three numbers from 0 to 1 that sum to 1"),
        ("tasks.fractions=[0.5, 0.5, 0, 0]", "three numbers from 0 to 1 that sum to 1"),
        ("tasks.class_order=[-1]", "list of labels or class names, or null"),
        (
            "method=ecg",
            f"{', '.join(method_names())} or package.module:Class",
        ),
        ("preset=best", "paper, reference or plus"),
        ("preset=[plus]", "paper, reference or plus"),
        ("setting=both", "task-il or class-il"),
        ("seed=-1", "integer >= 0"),
        ("seed=9223372036854775808", "integer >= 0"),
        ("memory=lots", "a size such as 512MiB or 8GiB, or null"),
        ("memory=0", "a size such as 512MiB or 8GiB, or null"),
        ("memory=-5", "a size such as 512MiB or 8GiB, or null"),
        ("memory=true", "a size such as 512MiB or 8GiB, or null"),
        ("threads=0", "integer >= 1 or null"),
        ("store=5", "path or URL"),
        ("store=''", "path or URL"),
        ('store="a\\0b"', "path or URL"),
        ("learn=5", "a section: keys and values"),
        ("learn=[epochs]", "a section: keys and values"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_may_be(override: str, expected: str) -> None:
    error = refused(MINIMAL, override)
    key = override.partition("=")[0]
    assert error.what.split(" ")[0].partition("[")[0] == key
    assert error.expected == expected
    assert error.where == f"--set {override}"


def test_the_nearest_value_is_offered() -> None:
    assert refused(MINIMAL, "method=finetuning").fix == "did you mean finetune?"
    assert refused(MINIMAL, "learn.balance=unfied").fix == "did you mean unified?"


def test_the_element_of_a_list_is_named() -> None:
    assert refused(MINIMAL, "learn.hidden=[8, x]").what == "learn.hidden[1] is 'x'"


def test_several_mistakes_are_all_named_and_the_mistyped_key_first() -> None:
    error = refused({"learn": {"lr": -1, "epoch": 5}, "rank": {"tol": "small"}})
    assert error.what == "there is no key learn.epoch (also wrong: store, learn.lr, rank.tol)"


def test_a_long_value_is_shown_short() -> None:
    assert len(refused(MINIMAL, f"method={'x' * 1000}").what) < 100


def test_the_store_must_be_given() -> None:
    error = refused({})
    assert (error.what, error.expected) == ("the key store is missing", "store: path or URL")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tasks.kind=time"], ["tasks.kind is time", "tasks.column is null"]),
        (["tasks.column=year"], ["tasks.column is given", "tasks.kind is class"]),
        (["tasks.kind=time", "tasks.column=year", "tasks.class_order=[1]"], ["tasks.class_order", "time"]),
        (["tasks.class_order=[1, 2, 1]"], ["tasks.class_order", "twice"]),
        (["tasks.class_order=[]"], ["tasks.class_order", "empty"]),
        (["tasks.fractions=[0.5, 0.2, 0.2]"], ["tasks.fractions", "sum to 1"]),
        (["tasks.fractions=[1.2, -0.1, -0.1]"], ["tasks.fractions", "from 0 to 1"]),
        (["tasks.fractions=[0.8, 0.2, 0]"], ["tasks.fractions", "tasks.score is test"]),
        (["tasks.fractions=[0.8, 0, 0.2]", "tasks.score=valid"], ["tasks.fractions", "tasks.score is valid"]),
        (["bank.budget=0"], ["bank.budget is 0", "bank.quota is class"]),
        (["bank.select=ecgl", "bank.importance=false", "bank.diversity=false"], ["both false", "bank.select=random"]),
        (["bank.importance=false"], ["bank.importance is false, but bank.select is herding", "bank.select=ecgl"]),
        (["bank.diversity=false", "bank.select=kmeans"], ["bank.diversity is false, but bank.select is kmeans"]),
        (["learn.train_as=gcn", "learn.features=propagated:1"], ["learn.features is propagated:1", "train_as is gcn"]),
        (["learn.train_as=gcn", "learn.batching=minibatch"], ["learn.batching", "learn.train_as is gcn"]),
        (["learn.reduction=sum"], ["learn.reduction is sum", "learn.balance is unified"]),
        (["tasks.classes_per_task=1", "setting=task-il"], ["classes_per_task is 1", "class-il"]),
        (["preset=paper", "learn.balance=task"], ["learn.reduction is sum", "learn.balance is task"]),
    ],
)
def test_values_that_contradict_each_other_are_refused(overrides: list[str], words: list[str]) -> None:
    message = str(refused(MINIMAL, *overrides))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "overrides",
    [
        ["bank.budget=0", "bank.quota=none"],
        ["tasks.kind=time", "tasks.column=year"],
        ["tasks.classes_per_task=1", "setting=class-il"],
        ["tasks.fractions=[0.8, 0, 0.2]"],
        ["tasks.fractions=[0.8, 0.2, 0]", "tasks.score=valid"],
        ["tasks.split=store", "tasks.fractions=[1, 0, 0]"],
        ["learn.train_as=gcn"],
        ["learn.hidden=[]"],
        ["learn.device=cuda:1"],
        ["bank.importance=false", "bank.diversity=false", "bank.select=random"],
    ],
)
def test_unusual_values_that_make_sense_are_taken(overrides: list[str]) -> None:
    config_from_mapping(MINIMAL, overrides=overrides)


@pytest.mark.parametrize("override", ["learn.epochs", "=5", "learn.=5", ".epochs=5", "", "learn..epochs=5"])
def test_an_override_that_is_no_key_and_value_is_refused(override: str) -> None:
    assert "KEY=VALUE" in str(refused(MINIMAL, override))


def test_an_override_inside_a_plain_value_is_refused() -> None:
    error = refused(MINIMAL, "store.path=a")
    assert (error.what, error.where) == ("store has no keys inside", "--set store.path=a")


def test_an_override_that_is_no_yaml_is_refused() -> None:
    assert "where: --set learn.hidden=[1, line" in str(refused(MINIMAL, "learn.hidden=[1"))
