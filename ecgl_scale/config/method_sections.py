"""What the config must know of methods: their names and their sections, which they declare in files of their own.

Methods compute, so their room comes after this one, and their files import torch. This file knows only where the table
of methods is, by name, and asks it when a config is really loaded: a process that learns has it loaded anyway, and
``import ecgl_scale.config.schema``, ``ecgl --help`` and ``ecgl report`` stay light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from ecgl_scale.config.sections import Section

TABLE = "ecgl_scale.learn.method.table"

OWN_METHOD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
"""A method of the user's own, imported from where Python finds modules."""


class DeclaredMethod(Protocol):
    """What is asked of a method's class; ``learn.method.base.Method`` explains it."""

    name: str
    settings: type[Section] | None
    remark: str
    is_reconstruction: bool


class MethodTable(Protocol):
    """What is asked of the module ``TABLE``."""

    def built_in_methods(self) -> Mapping[str, DeclaredMethod]:
        """Find the methods of this package by name, in the order in which they are listed."""
        ...

    def method_class(self, name: str) -> DeclaredMethod:
        """Find one of them, or a class of the user's own."""
        ...


def _table() -> MethodTable:
    return cast(MethodTable, import_module(TABLE))


def method_names() -> list[str]:
    """Names of the built-in methods, in the order in which they are listed."""
    return list(_table().built_in_methods())


def is_method(name: str) -> bool:
    """Whether it names a built-in method, or may name a class of the user's own."""
    return OWN_METHOD.fullmatch(name) is not None or name in method_names()


def section_classes(method: object) -> list[tuple[str, type[Section]]]:
    """Names and classes of the sections of all built-in methods, and of ``method``, a class of the user's own.

    One that has a built-in method as its base, and no settings besides, reads that method's section.
    """
    kinds = [*_table().built_in_methods().values()]
    found = [(kind.name, kind.settings) for kind in kinds if kind.settings is not None]
    if isinstance(method, str) and OWN_METHOD.fullmatch(method):
        own = _table().method_class(method)
        if own.settings is not None and own.settings not in (known for _, known in found):
            found.append((own.name, own.settings))
    return found


def describe_methods_key() -> str:
    """What the key ``method`` means, from what the methods say of themselves."""
    kinds = _table().built_in_methods().values()
    remarks = [kind.remark for kind in kinds if kind.remark]
    made_again = [f"`{kind.name}`" for kind in kinds if kind.is_reconstruction]
    others = ", ".join(["the others are those of the paper's tables", *made_again])
    return (
        f"{'; '.join([*remarks, others])}{' as a reconstruction: there is no public code' if made_again else ''}. "
        "A class of your own: see docs/adding-a-method.md."
    )
