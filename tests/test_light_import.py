"""``import ecgl_scale`` and ``ecgl --help`` load nothing heavy: each case in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "dgl", "dask", "zarr", "numba", "pyarrow", "numpy", "ogb", "scipy", "pandas", "matplotlib", "jinja2"}
_HELP = "import runpy\nsys.argv = {argv!r}\ntry:\n    runpy.run_module('ecgl_scale.cli.main', run_name='__main__')\n"


def loaded_by(statements: str) -> tuple[set[str], str]:
    """Top-level modules after the statements have run, and what they printed."""
    code = f"import json, sys\n{statements}\nprint('MODULES ' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    printed, _, modules = done.stdout.rpartition("MODULES ")
    return {name.split(".")[0] for name in json.loads(modules)}, printed


@pytest.mark.parametrize("module", ["ecgl_scale", "ecgl_scale.cli.main", "ecgl_scale.config.schema"])
def test_importing_the_package_or_the_command_loads_nothing_heavy(module: str) -> None:
    modules, _ = loaded_by(f"import {module}")
    assert "ecgl_scale" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "kron", "--help"], ["ingest", "edges", "--help"]])
def test_help_is_shown_without_loading_anything_heavy(arguments: list[str]) -> None:
    run = _HELP.format(argv=["ecgl", *arguments]) + "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
    modules, printed = loaded_by(run)
    assert printed.startswith("Usage: ecgl")
    assert modules & HEAVY == set()


def test_methods_are_loaded_when_a_config_is() -> None:
    load = "from ecgl_scale.config.schema import config_from_mapping\nconfig_from_mapping({'store': 'a.ecgl'})"
    assert "torch" in loaded_by(load)[0]


def test_reports_and_status_do_without_the_libraries_that_learn() -> None:
    modules, _ = loaded_by("import ecgl_scale.report.content, ecgl_scale.watch.sweep_status")
    assert modules & {"torch", "dgl", "numba", "pydantic"} == set()


def test_the_check_sees_a_heavy_module() -> None:
    assert "numpy" in loaded_by("import numpy")[0] & HEAVY


def test_the_store_is_loaded_when_its_name_is_first_used() -> None:
    modules, printed = loaded_by("import ecgl_scale\nprint(ecgl_scale.GraphStore.__name__)")
    assert printed == "GraphStore\n"
    assert {"numpy", "pyarrow"} <= modules
    assert modules & {"torch", "dgl", "ogb"} == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    run = "import ecgl_scale\ntry:\n    ecgl_scale.nothing\nexcept AttributeError as error:\n    print(error)"
    assert "nothing" in loaded_by(run)[1]
