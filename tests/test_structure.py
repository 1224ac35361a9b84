"""What the source may and may not say, read from its syntax tree: imports, dangerous calls, sizes, side effects.

Every rule is a function on a tree; beside each stands a test that it catches what it is there to catch.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("ecgl_scale", "kernels")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
TREES = {name: ast.parse(text) for name, text in FILES.items()}
MAX_LINES = 350

COMMON = {"ecgl_scale.errors", "ecgl_scale.units", "ecgl_scale._version"}
ORDER = ("base", "config", "engine", "store", "graph", "tasks", "rank", "infer", "learn", "session")
"""Rooms that compute. Each may import those before it; docs/house.md says why they stand in this order."""
WITH_KERNELS = {"engine", "store", "graph", "tasks", "rank", "learn", "infer"}
NUMBERS = {"ecgl_scale.tasks.metrics", "ecgl_scale.tasks.measures"}
ROOMS: dict[str, set[str]] = {
    "ecgl_kernels": {"ecgl_kernels"},
    "ecgl_scale._version": set(),
    "ecgl_scale.errors": set(),
    "ecgl_scale.units": {"ecgl_scale.errors"},
    **{
        f"ecgl_scale.{room}": {
            *COMMON,
            *(f"ecgl_scale.{earlier}" for earlier in ORDER[: place + 1]),
            *({"ecgl_kernels"} if room in WITH_KERNELS else ()),
        }
        for place, room in enumerate(ORDER)
    },
    # These two read files, never live objects. Which keys of a config change no result the config says, in a file that
    # has names alone: a copy of that list has gone astray before. Which version of a model counts is a matter of names,
    # too.
    "ecgl_scale.report": {
        *COMMON,
        *NUMBERS,
        "ecgl_scale.base.versions",
        "ecgl_scale.config.keys",
        "ecgl_scale.report",
        "ecgl_scale.watch",
    },
    "ecgl_scale.watch": {
        *COMMON,
        *NUMBERS,
        "ecgl_scale.watch",
        "ecgl_scale.report.files",
        "ecgl_scale.report.about_method",
    },
    "ecgl_scale.cli": {
        *COMMON,
        *(f"ecgl_scale.{room}" for room in (*ORDER, "report", "watch", "cli")),
    },
    "ecgl_scale": {"ecgl_scale._version", "ecgl_scale.store", "ecgl_scale.tasks", "ecgl_scale.session"},
}
"""Who may import whom of ours. A new room needs a place in ORDER, which is the moment to think about its direction."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "numpy": ("ecgl_scale/", "kernels/"),
    "numba": tuple(f"kernels/ecgl_kernels/{name}.py" for name in ("_bits", "_cache", "_jit", "_vector")),
    "llvmlite": ("kernels/ecgl_kernels/_bits.py", "kernels/ecgl_kernels/_vector.py"),  # what numba cannot say
    "pyarrow": (
        "ecgl_scale/base/arrow.py",
        "ecgl_scale/base/parquet.py",
        "ecgl_scale/store/",
        "ecgl_scale/rank/scores.py",
        "ecgl_scale/rank/candidates.py",
        "ecgl_scale/learn/bank.py",
        "ecgl_scale/tasks/split.py",
        "ecgl_scale/session/",
    ),
    "threadpoolctl": ("ecgl_scale/engine/threads.py",),
    "pydantic": ("ecgl_scale/config/", "ecgl_scale/learn/methods/"),  # a method has its section of the config with it
    "yaml": ("ecgl_scale/config/text.py", "ecgl_scale/report/files.py"),
    "scipy": ("ecgl_scale/learn/methods/gem.py",),
    "safetensors": ("ecgl_scale/learn/tensors.py",),
    "obstore": ("ecgl_scale/base/objects/client.py",),
    "crc32c": ("ecgl_scale/base/durable.py",),
    "zarr": ("ecgl_scale/store/sources/node_files.py",),
    "typer": ("ecgl_scale/cli/",),
    "rich": ("ecgl_scale/cli/",),
    "ogb": ("ecgl_scale/store/sources/ogb_evaluator.py",),
    "dgl": ("ecgl_scale/store/convert.py", "ecgl_scale/graph/metis_process.py", "ecgl_scale/infer/backends/"),
    "torch": (
        "ecgl_scale/store/convert.py",
        "ecgl_scale/engine/threads.py",  # how many threads it may use, beside the same for BLAS; imported when asked
        "ecgl_scale/graph/autograd.py",  # P with a gradient; the rest of the room is numpy
        "ecgl_scale/graph/metis_process.py",
        "ecgl_scale/learn/",
        "ecgl_scale/infer/",
        "ecgl_scale/session/",
    ),
    "dask": ("ecgl_scale/engine/cluster/dask_",),
    "distributed": ("ecgl_scale/engine/cluster/dask_",),
    "cryptography": ("ecgl_scale/engine/cluster/tls.py",),
    "matplotlib": ("ecgl_scale/report/",),
    "memray": ("ecgl_scale/session/profile.py", "ecgl_scale/session/profile_page.py"),
    "jinja2": ("ecgl_scale/report/", "ecgl_scale/session/batch/script.py"),
    "markupsafe": ("ecgl_scale/report/page.py",),  # jinja2's own type for text that is escaped already
}
"""Where a library may be imported, by the beginning of the path; one that is not named may be imported nowhere."""

METHOD_NAMES = {Path(path).stem for path in FILES if path.startswith("ecgl_scale/learn/methods/")} - {"__init__"}
NAMED_METHODS = {
    "ecgl_scale/config/schema.py": {"ecgl"},  # the method of a config that names none
    "ecgl_scale/session/ecgl_model.py": {"ecgl"},  # the same of the class ECGL
    "ecgl_scale/config/choices.py": {"ecgl"},  # bank.select: ecgl
    "ecgl_scale/config/presets.py": {"ecgl"},  # the same
    "ecgl_scale/report/runs.py": {"ecgl"},  # the same
    "ecgl_scale/config/sections.py": {"ecgl", "ssm"},  # bank.select: ecgl; whom learn.lambda is for, in its description
    "ecgl_scale/rank/choose.py": {"ecgl"},  # bank.select: ecgl
    "ecgl_scale/cli/main.py": {"ecgl"},  # the command
    "ecgl_scale/cli/command_docs.py": {"ecgl"},
    "ecgl_scale/store/nodes.py": {"ecgl"},  # the project, in the metadata of files
    "ecgl_scale/store/edges/write.py": {"ecgl"},
    "ecgl_scale/report/about_method.py": {"joint", "dygrain"},  # results from before runs said it of themselves
}
"""Where methods are named outside of their own files. A new method needs no line here, and should get none."""

FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_NAMES = {
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "pandas.read_pickle",
    "eval",
    "exec",
    "__import__",
    "builtins.eval",
    "builtins.exec",
    "os.system",
    "os.popen",
    "os.fork",
    "os.forkpty",
    "pty.fork",
    "multiprocessing.Process",
    "multiprocessing.Pool",
}
OBJECT_COLLECTIVE = re.compile(r"(gather|scatter|broadcast|send|recv|reduce|to_all)\w*_object(_list)?$")
"""Calls of torch.distributed that pickle what they send, whatever the module is called where they are used."""
START_METHODS = {"multiprocessing.get_context", "multiprocessing.set_start_method"}
SIDE_EFFECTS = {
    "numpy.seterr",
    "numpy.random.seed",
    "random.seed",
    "numba.set_num_threads",
    "torch.set_num_threads",
    "torch.manual_seed",
    "logging.basicConfig",
    "logging.disable",
    "warnings.filterwarnings",
    "warnings.simplefilter",
    "signal.signal",
}
EFFECTIVE = (ast.For, ast.While, ast.With, ast.Delete, ast.AugAssign)

RIDDLE = re.compile(r"(Of|The same)\b")
"""How docstrings begin that do not name their subject."""
FEWEST_WORDS = 3


@dataclass(frozen=True)
class Imported:
    name: str
    line: int
    typing_only: bool


def imports_of(tree: ast.AST) -> Iterator[Imported]:
    """Every module named by an import, also inside functions; ``from a import b`` names ``a`` and ``a.b``."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
            names = [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
        for name in names:
            yield Imported(name, getattr(node, "lineno", 0), id(node) in typing_only)


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def room_of(name: str) -> str:
    return max((room for room in ROOMS if is_inside(name, room)), key=len)


def module_name(path: str) -> str:
    return path.removeprefix("kernels/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def wrong_directions(path: str, tree: ast.AST) -> list[str]:
    own = module_name(path)
    allowed = ROOMS[room_of(own)]
    found = []
    for imported in imports_of(tree):
        if imported.name.startswith("."):
            found.append(f"{path}:{imported.line} imports {imported.name}: write the whole name")
        elif imported.name.split(".")[0] in ("ecgl_scale", "ecgl_kernels"):
            is_package_name = imported.name in ("ecgl_scale", "ecgl_kernels") or imported.name == own
            if not is_package_name and not any(is_inside(imported.name, room) for room in allowed):
                found.append(f"{path}:{imported.line} imports {imported.name}")
    return found


def misplaced_libraries(path: str, tree: ast.AST) -> list[str]:
    found = []
    for imported in imports_of(tree):
        library = imported.name.split(".")[0]
        if library in sys.stdlib_module_names or library in ("", "ecgl_scale", "ecgl_kernels") or imported.typing_only:
            continue
        if not path.startswith(LIBRARIES.get(library) or ("\0",)):
            found.append(f"{path}:{imported.line} imports {imported.name}")
    return found


def full_names(tree: ast.AST) -> dict[str, str]:
    """What a local name stands for: ``np`` is ``numpy``, ``load`` from ``from torch import load`` ``torch.load``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return "?"


def is_constant(node: ast.AST | None, *values: object) -> bool:
    return isinstance(node, ast.Constant) and node.value in values


def dangers(tree: ast.AST) -> list[str]:
    """Whatever could run code from a file, hand text to a shell, or fork."""
    names = full_names(tree)
    found = [f"line {i.line}: {i.name}" for i in imports_of(tree) if i.name.split(".")[0] in FORBIDDEN_MODULES]
    for node in ast.walk(tree):
        name = dotted(node, names)
        if name in FORBIDDEN_NAMES or OBJECT_COLLECTIVE.search(name):
            found.append(f"line {node.lineno}: {name}")
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if is_constant(key, "allow_pickle", "shell") and not is_constant(value, False):
                    found.append(f"line {node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.Call):
            found += [f"line {node.lineno}: {what}" for what in _dangers_of_call(node, names)]
    return found


def _dangers_of_call(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    function = dotted(call.func, names)
    for keyword in call.keywords:
        if keyword.arg in ("allow_pickle", "shell") and not is_constant(keyword.value, False):
            yield ast.unparse(call)
    if function == "getattr" and any(
        is_constant(call.args[1], name.rpartition(".")[2]) and dotted(call.args[0], names) == name.rpartition(".")[0]
        for name in FORBIDDEN_NAMES
    ):
        yield ast.unparse(call)
    if function == "numpy.load" and len(call.args) > 2 and not is_constant(call.args[2], False):
        yield ast.unparse(call)
    if function in START_METHODS and not (call.args and is_constant(call.args[0], "spawn", "forkserver")):
        yield ast.unparse(call)
    if function.endswith("ProcessPoolExecutor") and not any(keyword.arg == "mp_context" for keyword in call.keywords):
        yield ast.unparse(call)


def import_effects(tree: ast.Module, *, may_register: bool = False) -> list[str]:
    """Statements that do something when the module is imported, beyond naming things."""
    names = full_names(tree)
    return [f"line {node.lineno}: {ast.unparse(node)[:60]}" for node in _effects(tree.body, names, may_register)]


def _effects(body: list[ast.stmt], names: dict[str, str], may_register: bool) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.Expr):
            registers = may_register and re.match(r"app\.(add_typer|command|callback)\(", ast.unparse(node))
            if not isinstance(node.value, ast.Constant) and not registers:
                yield node
        elif isinstance(node, ast.ClassDef):
            yield from _effects(node.body, names, may_register=False)
        elif isinstance(node, ast.If):
            if ast.unparse(node.test) not in ("TYPE_CHECKING", "__name__ == '__main__'"):
                yield from _effects(node.body, names, may_register)
            yield from _effects(node.orelse, names, may_register)
        elif isinstance(node, ast.Try):
            parts = [node.body, node.orelse, node.finalbody, *(handler.body for handler in node.handlers)]
            for part in parts:
                yield from _effects(part, names, may_register)
        elif isinstance(node, EFFECTIVE) or _assigns_with_effect(node, names):
            yield node


def _assigns_with_effect(node: ast.stmt, names: dict[str, str]) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    calls = [dotted(inner.func, names) for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return any(isinstance(target, ast.Subscript | ast.Attribute) for target in targets) or bool(
        SIDE_EFFECTS.intersection(calls)
    )


def prints(tree: ast.AST) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"]


def ownerless_todos(text: str) -> list[str]:
    return [
        f"line {token.start[0]}: {token.string}"
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX)\b(?!\(\w+\))", token.string)
    ]


def named_methods(tree: ast.AST) -> set[str]:
    """Built-in methods that a string names: alone, as a section of the config, or in backticks. Docstrings may."""
    told = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
    ]
    return {
        name
        for name in METHOD_NAMES
        if any(text == name or text.startswith(f"{name}.") or f"`{name}`" in text for text in texts)
    }


@dataclass(frozen=True)
class Docstring:
    text: str
    line: int
    is_public: bool
    """It is of a function or class whose name does not begin with an underscore."""


def docstrings_of(tree: ast.AST) -> Iterator[Docstring]:
    """Docstrings of the module, its classes and functions; and of attributes, which stand below an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            text, is_first = statement.value.value, before is None
            if isinstance(text, str) and (is_first or isinstance(before, ast.Assign | ast.AnnAssign)):
                is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                yield Docstring(text, statement.lineno, is_first and is_named and not node.name.startswith("_"))


def weak_docstrings(tree: ast.AST) -> list[str]:
    """Docstrings that do not say what they are about: no subject, or of something public and too short."""
    return [
        f"line {found.line}: {found.text.splitlines()[0]}"
        for found in docstrings_of(tree)
        if RIDDLE.match(found.text) or (found.is_public and len(found.text.split()) < FEWEST_WORDS)
    ]


def test_the_source_is_found() -> None:
    assert len(FILES) > 40
    assert "kernels/ecgl_kernels/_jit.py" in FILES


def test_rooms_import_only_the_rooms_before_them() -> None:
    assert [line for path, tree in TREES.items() for line in wrong_directions(path, tree)] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kernels/ecgl_kernels/new.py", "from ecgl_scale.errors import EcglError"),
        ("ecgl_scale/errors.py", "import ecgl_scale.units"),
        ("ecgl_scale/units.py", "from ecgl_scale.base import memory"),
        ("ecgl_scale/base/memory.py", "from ecgl_scale import store"),
        ("ecgl_scale/base/memory.py", "def f():\n    from ecgl_scale.cli.output import fail"),
        ("ecgl_scale/base/new.py", "import ecgl_kernels.csr"),
        ("ecgl_scale/store/new.py", "from ecgl_scale.cli import options"),
        ("ecgl_scale/store/new.py", "from ecgl_scale.rank import journal"),
        ("ecgl_scale/rank/new.py", "from ecgl_scale.cli import options"),
        ("ecgl_scale/store/new.py", "import ecgl_scale.learn.train"),
        ("ecgl_scale/store/new.py", "from . import edges"),
        ("ecgl_scale/store/new.py", "importlib.import_module('ecgl_scale.cli.main')"),
        ("ecgl_scale/store/new.py", "if TYPE_CHECKING:\n    from ecgl_scale.report import html"),
    ],
)
def test_an_import_against_the_direction_is_caught(path: str, text: str) -> None:
    assert wrong_directions(path, ast.parse(text))


def test_each_library_is_imported_only_where_it_belongs() -> None:
    assert [line for path, tree in TREES.items() for line in misplaced_libraries(path, tree)] == []


@pytest.mark.parametrize("library", ["torch", "dask.distributed", "zarr", "dgl", "pyarrow.csv", "typer", "requests"])
def test_a_library_in_the_wrong_room_is_caught(library: str) -> None:
    for text in (f"import {library}", f"def f():\n    from {library} import x", f"import_module({library!r})"):
        assert misplaced_libraries("ecgl_scale/base/memory.py", ast.parse(text))
        assert misplaced_libraries("kernels/ecgl_kernels/csr.py", ast.parse(text))


def test_a_library_named_only_for_the_type_checker_does_not_count() -> None:
    text = "if TYPE_CHECKING:\n    import dgl\n"
    assert misplaced_libraries("ecgl_scale/store/graph.py", ast.parse(text)) == []
    assert misplaced_libraries("ecgl_scale/store/graph.py", ast.parse(text + "else:\n    import dgl")) != []


def test_kernels_import_only_numpy_numba_and_the_standard_library() -> None:
    allowed = {"numpy", "numba", "llvmlite", "ecgl_kernels", *sys.stdlib_module_names}
    tops = {i.name.split(".")[0] for path, tree in TREES.items() if "kernels/" in path for i in imports_of(tree)}
    assert tops - allowed == set()


def test_a_method_is_named_in_its_own_file_alone() -> None:
    found = {
        path: named_methods(tree) for path, tree in TREES.items() if not path.startswith("ecgl_scale/learn/methods/")
    }
    assert {path: names for path, names in found.items() if names} == NAMED_METHODS


def test_methods_do_not_name_each_other() -> None:
    for name in METHOD_NAMES:
        assert named_methods(TREES[f"ecgl_scale/learn/methods/{name}.py"]) - {name} == set()


@pytest.mark.parametrize("text", ["x = {'ewc': 1}", "f('ewc.lambda')", "f(about='as `ewc` does')", "f'{x} `ewc`'"])
def test_a_name_of_a_method_is_caught(text: str) -> None:
    assert named_methods(ast.parse(text)) == {"ewc"}
    assert named_methods(ast.parse('"""As ``ewc``, see `ewc`."""\nx = "a cat", "ecgl run"')) == set()


def test_nothing_unpickles_evaluates_forks_or_calls_a_shell() -> None:
    assert {path: found for path, tree in TREES.items() if (found := dangers(tree))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "import shelve",
        "import dill",
        "def f():\n    import cloudpickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "import torch as t\nread = t.load",
        "from torch import load\nload('x')",
        "import torch\ngetattr(torch, 'load')('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=wanted)",
        "import numpy as np\nnp.load('x', None, True)",
        "import numpy as np\nnp.load('x', **{'allow_pickle': True})",
        "import torch.distributed as dist\ndist.all_gather_object(found, x)",
        "from torch.distributed import broadcast_object_list as send\nsend([x])",
        "group.send_object_list([x], dst=1)",
        "import yaml\nyaml.load(text)",
        "from yaml import load\nload(text)",
        "eval('1')",
        "exec('a = 1')",
        "run = eval",
        "__import__('os')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "from os import system\nsystem('ls')",
        "import os\nos.fork()",
        "import multiprocessing\nmultiprocessing.Process(target=f)",
        "from multiprocessing import Pool\nPool(2)",
        "import multiprocessing as mp\nmp.get_context('fork')",
        "import multiprocessing as mp\nmp.get_context()",
        "import multiprocessing as mp\nmp.set_start_method('fork')",
        "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor(2)",
    ],
)
def test_a_dangerous_call_is_caught(text: str) -> None:
    assert dangers(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "model.eval()",
        "spec.loader.exec_module(module)",
        "import json\njson.load(file)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "import multiprocessing as mp\nmp.get_context('spawn').Process(target=f)",
        "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor(2, mp_context=spawn)",
    ],
)
def test_a_harmless_call_is_left_alone(text: str) -> None:
    assert dangers(ast.parse(text)) == []


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {path: len(text.splitlines()) for path, text in FILES.items()}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_only_the_command_line_prints() -> None:
    assert {path for path, tree in TREES.items() if prints(tree) and not path.startswith("ecgl_scale/cli/")} == set()
    assert any(prints(tree) for tree in TREES.values())


def test_every_todo_has_an_owner() -> None:
    assert {path: found for path, text in FILES.items() if (found := ownerless_todos(text))} == {}
    assert ownerless_todos("a = 1  # TODO: later\n")
    assert ownerless_todos("# FIXME\n")
    assert ownerless_todos("a = '# TODO'  # TODO(ann): by May\n") == []


def test_importing_a_module_does_nothing_but_name_things() -> None:
    found = {path: import_effects(tree, may_register="/cli/" in path) for path, tree in TREES.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nnp.seterr(all='raise')",
        "import numpy as np\nbefore = np.seterr(all='raise')",
        "import numba\nnumba.set_num_threads(2)",
        "import logging\nlogging.basicConfig()",
        "import torch\ntorch.set_num_threads(1)",
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'",
        "import numpy as np\nif True:\n    np.random.seed(0)",
        "try:\n    start()\nexcept OSError:\n    pass",
        "class A:\n    register()",
        "for name in names:\n    add(name)",
        "with open('x') as file:\n    text = file.read()",
        "app.command('x')(x)",
    ],
)
def test_a_side_effect_at_import_is_caught(text: str) -> None:
    assert import_effects(ast.parse(text))


def test_docstrings_say_what_they_are_about() -> None:
    found = {path: lines for path, tree in TREES.items() if (lines := weak_docstrings(tree))}
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        '"""Of all nodes, the best."""',
        'class A:\n    """The same for sparse rows."""',
        'def _f():\n    """The same, sorted."""',
        'async def _f():\n    """Of a row."""',
        'A = 1\n"""Of its file."""',
        'class A:\n    size: int = 1\n    """Of a block."""',
        'class A:\n    def __init__(self):\n        self.a = 1\n        """The same as b."""',
        'def f():\n    """A copy."""',
        'class A:\n    def f(self):\n        """T."""',
        'class A:\n    """Both files."""',
    ],
)
def test_a_docstring_without_a_subject_is_caught(text: str) -> None:
    assert weak_docstrings(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        '"""Tables."""',
        'def f():\n    """Close the file."""',
        'def _f():\n    """Seconds."""',
        'A = 1\n"""Bytes."""',
        'A = 1\nB = "Of"\nf("The same")',
        'def f():\n    """Often it is the same."""',
    ],
)
def test_a_docstring_with_a_subject_is_left_alone(text: str) -> None:
    assert weak_docstrings(ast.parse(text)) == []
