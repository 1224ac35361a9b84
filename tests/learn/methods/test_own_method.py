"""A method of the user's own: the template has every hook and runs, and a config may name any class."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.config.schema import config_from_mapping, load_config
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.method.table import create_method
from ecgl_scale.learn.method.base import Method
from ecgl_scale.session.run import run
from tests.cli_runner import run_cli
from tests.learn.methods.learning import check_goes_on, small_config
from tests.session.streams import read_json, write_config

DOCS = Path(__file__).parents[3] / "docs"
TEMPLATE = "method_template:MyMethod"
OWN_MODULE = """
from method_template import MyMethod
from ecgl_scale.learn.method.base import Method

class Marked(MyMethod):
    name = "marked"

class RowsOnly(Method):
    name = "rows-only"
    backbones = ("mlp",)

class Nameless(Method):
    pass

class Asking(Method):
    name = "asking"
    def __init__(self, strength):
        pass

number = 3
"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own_methods.py").write_text(OWN_MODULE)
    (tmp_path / "broken_methods.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.syspath_prepend(str(tmp_path))
    known = os.environ.get("PYTHONPATH", "")  # a sweep's runs are processes of their own
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOCS), *([known] if known else [])]))


def members(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_the_template_has_every_hook_and_attribute_with_a_line_about_each() -> None:
    template = type(create_method(TEMPLATE))
    assert issubclass(template, Method)
    own = {name for name in vars(template) if not name.startswith("_")}
    assert own == members(Method) | {"name"}
    for name in own:
        hook = vars(template)[name]
        if inspect.isfunction(hook):
            assert len(inspect.getdoc(hook).splitlines()) == 1
            assert inspect.signature(hook) == inspect.signature(vars(Method)[name])


@pytest.mark.parametrize("train_as", ["mlp", "gcn"])
def test_the_template_as_it_is_learns_as_fine_tuning_does(
    store: Path, cache: Path, tmp_path: Path, train_as: str
) -> None:
    found = [
        run(small_config(store, cache, method, f"learn.train_as={train_as}"), tmp_path / method.partition(":")[0])
        for method in (TEMPLATE, "finetune")
    ]
    assert found[0]["matrix"] == found[1]["matrix"]
    assert found[0]["method"] == TEMPLATE


def test_the_template_goes_on_after_a_stop(store: Path, cache: Path, tmp_path: Path) -> None:
    check_goes_on(small_config(store, cache, TEMPLATE), tmp_path)


def test_a_config_file_names_a_method_and_is_planned_run_resumed_and_swept(
    store: Path, cache: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "run.yaml", store, cache=str(cache), method=TEMPLATE, learn={"hidden": [6], "epochs": 2}
    )
    assert run_cli("plan", config).code == 0
    ran = run_cli("run", config, "--out", tmp_path / "run")
    assert ran.code == 0, ran.stderr
    assert f"{TEMPLATE} (plus, class-il)" in ran.stdout
    assert load_config(tmp_path / "run" / "config.yaml").method == TEMPLATE
    assert run_cli("run", config, "--out", tmp_path / "run", "--resume").code == 0
    swept = run_cli("sweep", config, "--grid", f"method={TEMPLATE},finetune", "--out", tmp_path / "sweep")
    assert swept.code == 0, swept.stderr
    matrices = [read_json(path)["matrix"] for path in (tmp_path / "sweep").rglob("results.json")]
    assert len(matrices) == 2
    assert matrices[0] == matrices[1]
    assert run_cli("report", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Thing", ["no_such_module", "cannot be imported", "PYTHONPATH"]),
        ("broken_methods:Thing", ["SyntaxError"]),
        ("own_methods:Missing", ["own_methods:Missing is no method", "docs/method_template.py"]),
        ("own_methods:number", ["is no method"]),
        ("own_methods:Nameless", ["is no method", "a name"]),
        ("own_methods:Asking", ["cannot be made", "strength"]),
        ("pathlib:Path", ["pathlib:Path is no method"]),
    ],
)
def test_a_class_that_is_no_method_exits_with_2_before_anything_is_written(
    store: Path, tmp_path: Path, name: str, words: list[str]
) -> None:
    config = write_config(tmp_path / "run.yaml", store, method=name)
    ran = run_cli("run", config, "--out", tmp_path / "run")
    assert ran.code == 2, ran.stderr
    assert all(word in ran.stderr for word in words), ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_backbone_that_a_method_does_not_have_is_refused_before_anything_is_written(
    store: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "run.yaml", store, method="own_methods:RowsOnly")
    for command in (("plan", config), ("run", config, "--out", tmp_path / "run")):
        refused = run_cli(*command, "--set", "learn.train_as=gcn")
        assert refused.code == 2, refused.stderr
        assert "learn.train_as is gcn, which own_methods:RowsOnly cannot be trained as" in refused.stderr
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["own_methods.Marked", "a:b:c", ":Marked", "own_methods:", "../own:Marked", "a b:C"])
def test_a_name_that_can_be_no_class_is_refused_as_a_value(name: str) -> None:
    with pytest.raises(UsageError, match="method is") as refused:
        config_from_mapping({"store": "a.ecgl", "method": name})
    assert "package.module:Class" in refused.value.expected


def test_a_subclass_of_the_template_is_a_method() -> None:
    assert create_method("own_methods:Marked").name == "marked"
