"""``ecgl methods`` names every method, with what a user needs to choose one."""

from __future__ import annotations

import json

import pytest

from ecgl_scale.config.method_sections import method_names
from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.learn.method.table import built_in_methods
from tests.cli_runner import run_cli


def listed() -> list[dict[str, object]]:
    done = run_cli("methods", "--json")
    assert (done.code, done.stderr) == (0, "")
    methods = json.loads(done.stdout)["methods"]
    assert isinstance(methods, list)
    return methods


def test_every_method_is_listed_with_all_that_is_known_of_it() -> None:
    methods = listed()
    assert {method["name"] for method in methods} == set(built_in_methods())
    for method in methods:
        assert set(method) == {"name", "category", "choose_when", "stores", "cost", "backbones", "reference"}
        assert method["category"] in ("bound", "regularisation", "replay", "closed form")
        assert method["choose_when"]
        assert method["stores"]
        assert method["cost"]
        assert isinstance(method["backbones"], list)
        assert method["backbones"]
        assert set(method["backbones"]) <= {"mlp", "gcn"}
        assert method["reference"] or method["category"] == "bound"


def test_a_config_takes_every_method_and_no_other() -> None:
    assert set(method_names()) == set(built_in_methods())
    for name in method_names():
        assert config_from_mapping({"store": "a.ecgl", "method": name}).method == name


def test_the_table_has_them_all_in_even_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("40", "120", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        done = run_cli("methods")
        assert (done.code, done.stderr) == (0, "")
        head, *lines = done.stdout.splitlines()
        begun = [line for line in lines if not line.startswith(" ")]
        assert [line.split()[0] for line in begun] == [method["name"] for method in listed()]
        column = head.index("trained as")
        assert {line[column : column + 3] for line in begun} <= {"mlp", "gcn"}
        assert max(map(len, lines)) <= max(int(columns), 120)


def test_methods_of_a_kind_stand_together() -> None:
    kinds = [method["category"] for method in listed()]
    assert kinds == sorted(kinds, key=["bound", "regularisation", "replay", "closed form"].index)
