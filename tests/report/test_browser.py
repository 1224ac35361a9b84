"""The page in a real browser: Debian's chromium without a window. Skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.report.content import gather
from ecgl_scale.report.page import render_page
from ecgl_scale.report.palette import PAPER
from ecgl_scale.report.runs import FinishedRun
from tests.report.browser import needs_chromium, numbers, visit, watched
from tests.report.made_runs import make_comparison

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecgl_scale.report.content.MAX_DETAILED", 1)
        content = gather([FinishedRun.read(path) for path in make_comparison(folder / "runs")])
        text = render_page(content)
    (folder / "page.html").write_text(watched(text), encoding="utf-8")
    return folder / "page.html"


@pytest.fixture(scope="module")
def browse(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[dict[str, Any], str]]:
    profile = tmp_path_factory.mktemp("profile")

    return lambda *options: visit(page, profile, *options)


@pytest.fixture(scope="module")
def seen(browse: Callable[..., tuple[dict[str, Any], str]]) -> tuple[dict[str, Any], str]:
    return browse("--window-size=1200,900")


def test_it_opens_from_disk_without_an_error_or_a_request(seen: tuple[dict[str, Any], str]) -> None:
    found, said = seen
    assert found["errors"] == []
    assert found["requests"] == []
    assert "CONSOLE" not in said


def test_every_section_and_every_picture_has_a_place(seen: tuple[dict[str, Any], str]) -> None:
    found, _ = seen
    assert [name for name, _ in found["sections"]] == ["summary", "comparison", "learning", "sensitivity", "details"]
    assert all(height > 80 for _, height in found["sections"])
    assert found["pictures"] > 6
    assert found["flat"] == 0


def test_a_click_sorts_and_another_turns_it_round(seen: tuple[dict[str, Any], str]) -> None:
    found, _ = seen
    assert numbers(found["descending"]) == sorted(numbers(found["before"]), reverse=True)
    assert found["mark"] == "descending"
    assert numbers(found["ascending"]) == sorted(numbers(found["before"]))
    assert found["ascending"] != found["before"]
    shown = list(dict.fromkeys(found["words"]))
    budgets = ["ecgl, bank.budget=50", "ecgl, bank.budget=100"]  # by size, not letter by letter
    assert shown == ["ecgl", *budgets, "ecgl, bank.importance=False", "finetune", "joint"]
    assert found["forgetting"][-1] == "\N{EN DASH}"  # what is missing stays last


def test_it_follows_the_reader_into_the_dark_and_fits_a_phone(
    browse: Callable[..., tuple[dict[str, Any], str]], seen: tuple[dict[str, Any], str]
) -> None:
    dark, _ = browse("--window-size=500,900", "--blink-settings=preferredColorScheme=0")

    def as_text(color: str) -> str:
        return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"

    assert seen[0]["background"] == as_text(PAPER.light)
    assert dark["background"] == as_text(PAPER.dark)
    assert dark["wide"] <= 0


def test_paper_which_does_not_scroll_has_room_for_every_table(page: Path, tmp_path: Path) -> None:
    """A4 between margins of 15 mm, by the rules of print on a screen of that width."""
    text = page.read_text(encoding="utf-8").replace("@media print {", "@media all {")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    found, _ = visit(tmp_path / "page.html", tmp_path / "profile", "--window-size=680,900")
    assert found["wide"] <= 0
