"""Methods by name: those of this package, found by their files, and classes of the user's own."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.errors import UsageError
from ecgl_scale.learn import methods
from ecgl_scale.learn.method.base import Method


@cache
def built_in_methods() -> Mapping[str, type[Method]]:
    """The methods of ``learn.methods``, in the order in which they are listed."""
    files = [import_module(f"{methods.__name__}.{found.name}") for found in pkgutil.iter_modules(methods.__path__)]
    kinds = [
        kind
        for file in files
        for kind in vars(file).values()
        if isinstance(kind, type) and issubclass(kind, Method) and kind.__module__ == file.__name__
    ]
    kinds.sort(key=lambda kind: (kind.place, kind.name))
    return MappingProxyType({kind.name: kind for kind in kinds})


def method_of(config: RunConfig) -> Method:
    """The method of a config, which must be able to learn with its settings."""
    method = create_method(config.method)
    if config.learn.train_as not in method.backbones:
        raise UsageError(
            f"learn.train_as is {config.learn.train_as}, which {config.method} cannot be trained as",
            expected=" or ".join(method.backbones),
        )
    method.check(config)
    return method


def create_method(name: str) -> Method:
    """The method of this name, or of the class that ``package.module:Class`` names."""
    kind = method_class(name)
    try:
        return kind()
    except TypeError as error:
        raise UsageError(f"the method {name} cannot be made: {error}", expected="a class without arguments") from error


def method_class(name: str) -> type[Method]:
    """The class of a method."""
    if ":" in name:
        return _own_class(name)
    known = built_in_methods()
    if name not in known:
        raise UsageError(f"there is no method {name!r}", expected=", ".join(sorted(known)))
    return known[name]


def _own_class(name: str) -> type[Method]:
    module_name, _, class_name = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever someone else's module does when it is imported
        raise UsageError(
            f"the module of the method {name} cannot be imported: {type(error).__name__}: {error}",
            fix="install it, or name its folder in PYTHONPATH",
        ) from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method) and isinstance(getattr(kind, "name", None), str)):
        raise UsageError(
            f"{name} is no method",
            where=getattr(module, "__file__", module_name),
            expected=f"a class with {Method.__module__}.Method as its base, and a name",
            fix="begin with docs/method_template.py",
        )
    return kind
