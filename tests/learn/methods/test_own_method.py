"""A method of the user's own: the template runs, a config may name any class, and it may have settings."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from ecgl_scale.config.schema import config_from_mapping, load_config
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.method.base import Method
from ecgl_scale.learn.method.table import create_method
from ecgl_scale.learn.methods.ewc import EwcConfig
from ecgl_scale.session.run import run
from tests.cli_runner import run_cli
from tests.learn.methods.learning import begin, check_goes_on, learn, new_learner, small_config, weights_of
from tests.session.streams import read_json, write_config

DOCS = Path(__file__).parents[3] / "docs"
TEMPLATE = "method_template:MyMethod"
OWN_MODULE = """
from method_template import MyMethod
from ecgl_scale.learn.method.base import Method
from ecgl_scale.learn.methods.ewc import Ewc

class Marked(MyMethod):
    name = "marked"

class Colliding(MyMethod):
    name = "learn"

class Firmer(Ewc):
    name = "firmer"

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


def test_the_page_names_every_hook_and_declaration_and_the_template_is_short() -> None:
    page = (DOCS / "adding-a-method.md").read_text()
    tables = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    members = {name for name, _ in inspect.getmembers(Method) if not name.startswith("_")} | {"name"}
    assert {name for name in members if f"`{name}`" not in tables} == set()
    template = type(create_method(TEMPLATE))
    hooks = {name for name, value in vars(template).items() if inspect.isfunction(value)}
    assert hooks == {"penalty", "end_task", "forget"}


def test_a_section_of_a_methods_own_is_checked_resolved_and_read(store: Path, cache: Path, tmp_path: Path) -> None:
    held = small_config(store, cache, TEMPLATE, "my_method.strength=100")
    assert held.to_mapping()["my_method"] == {"strength": 100.0}
    (tmp_path / "held.yaml").write_text(held.to_yaml())
    assert load_config(tmp_path / "held.yaml") == held
    free = small_config(store, cache, TEMPLATE)
    assert free.digest() != held.digest()
    weights = []
    for config in (free, held):
        learner = new_learner(config, tmp_path / config.digest())
        learn(learner, 0)
        begin(learner, 1)
        before = weights_of(learner)
        learn(learner, 1)
        weights.append(sum(float((now - old).norm()) for now, old in zip(weights_of(learner), before, strict=True)))
    assert weights[1] < 0.5 * weights[0]


def test_a_section_of_another_method_of_ones_own_or_a_wrong_value_is_refused(store: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match="there is no key my_method"):
        small_config(store, cache, "finetune", "my_method.strength=1")
    with pytest.raises(UsageError, match=r"my_method\.strength is -1"):
        small_config(store, cache, TEMPLATE, "my_method.strength=-1")
    with pytest.raises(UsageError, match="cannot be that of a section"):
        small_config(store, cache, "own_methods:Colliding")


def test_a_class_with_a_built_in_method_as_its_base_reads_that_methods_section(store: Path, cache: Path) -> None:
    config = small_config(store, cache, "own_methods:Firmer", "ewc.lambda=7")
    assert config.section(EwcConfig).lambda_ == 7
    assert "firmer" not in config.to_mapping()


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
    check_goes_on(small_config(store, cache, TEMPLATE, "my_method.strength=1"), tmp_path)


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
