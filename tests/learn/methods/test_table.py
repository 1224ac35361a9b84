"""Built-in methods are found by their files, and a file declares all that is known of its method."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecgl_scale.config.keys import SECTIONS
from ecgl_scale.config.schema import RunConfig, config_class, config_from_mapping
from ecgl_scale.config.sections import LearnConfig, Section
from ecgl_scale.errors import UsageError
from ecgl_scale.learn import methods
from ecgl_scale.learn.method.base import Method
from ecgl_scale.learn.method.table import built_in_methods, method_class
from ecgl_scale.session.methods import about_method

FILES = {path.stem for path in Path(methods.__path__[0]).glob("*.py")} - {"__init__"}


def test_every_file_declares_one_method_which_has_its_name() -> None:
    found = built_in_methods()
    assert {name: kind.__module__.rpartition(".")[2] for name, kind in found.items()} == {name: name for name in FILES}


def test_no_two_methods_have_the_same_place() -> None:
    places = [kind.place for kind in built_in_methods().values()]
    assert places == sorted(set(places))
    assert max(places) < Method.place


def test_a_loaded_config_has_the_common_sections_and_then_those_of_methods() -> None:
    config = config_from_mapping({"store": "a.ecgl"})
    own = [name for name, kind in built_in_methods().items() if kind.settings is not None]
    assert [name for name, value in config if isinstance(value, Section)] == [*SECTIONS, *own]
    assert [name for name, field in RunConfig.model_fields.items() if isinstance(field.default, Section)] == [*SECTIONS]
    for name in own:
        kind = method_class(name).settings
        assert kind is not None
        assert config.section(kind) == getattr(config, name) == kind()


def test_a_section_that_a_config_does_not_have_is_said_so() -> None:
    class Unknown(Section):
        """Of no method."""

    with pytest.raises(UsageError, match="no section of the class Unknown"):
        config_from_mapping({"store": "a.ecgl"}).section(Unknown)
    assert RunConfig(store=Path("a.ecgl")).section(LearnConfig) == LearnConfig()


def test_the_class_of_configs_is_made_once() -> None:
    assert config_class() is config_class("finetune") is type(config_from_mapping({"store": "a.ecgl"}))


def test_a_runs_files_say_of_its_method_what_a_report_must_know() -> None:
    told = {name: about_method(name) for name in built_in_methods()}
    assert {name for name, about in told.items() if about["keeps_all_data"]} == {"joint"}
    assert {name for name, about in told.items() if about["is_reconstruction"]} == {"dygrain"}
    assert {about["category"] for about in told.values()} == {"bound", "regularisation", "replay", "closed form"}
    assert all(about["section"] == name for name, about in told.items())
