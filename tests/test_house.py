"""docs/house.md is the map of the tree: rooms, places and names on it exist, and no room is missing."""

from __future__ import annotations

import ast
import re

import pytest

from tests.test_structure import ORDER, ROOT

PAGE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "ecgl_scale"


def rooms_on_the_page() -> list[str]:
    table = PAGE.partition("## Rooms")[2].partition("## Words")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def places_on_the_page() -> list[tuple[str, str]]:
    """Every ``file.py:name``."""
    return sorted(set(re.findall(r"`([\w/]+\.py):(\w+)`", PAGE)))


def test_every_room_of_the_tree_is_on_the_page_in_the_order_of_imports() -> None:
    found = rooms_on_the_page()
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(found) == there | {"ecgl_kernels"}
    assert [room for room in found if room in ORDER] == list(ORDER)


def test_every_file_and_folder_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?:ecgl_scale|tests|docs|engine|session|learn)/[\w/]+(?:\.py)?)`", PAGE))
    assert len(named) > 10
    missing = [name for name in named if not ((ROOT / name).exists() or (PACKAGE / name).exists())]
    assert missing == []


@pytest.mark.parametrize(("path", "name"), places_on_the_page())
def test_what_the_page_says_of_a_place_is_defined_there(path: str, name: str) -> None:
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert name in defined


def test_every_room_says_what_it_is_for() -> None:
    for room in rooms_on_the_page():
        folder = ROOT / "kernels" / room if room == "ecgl_kernels" else PACKAGE / room
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert said is not None, room
        assert len(said.split()) > 20, f"{room} says too little of itself: {said}"


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/house.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
