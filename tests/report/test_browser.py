"""The page in a real browser: Debian's chromium without a window. Skipped where it is not installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.report.content import gather
from ecgl_scale.report.page import render_page
from ecgl_scale.report.palette import PAPER
from ecgl_scale.report.runs import FinishedRun
from tests.report.made_runs import make_comparison

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

QUIET = [
    "--headless",
    "--no-sandbox",  # it cannot be set up as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
]

# Runs before the page's own script, and puts what it has seen into the page when all has settled.
WATCH = """<script>
const seen = { errors: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => seen.errors.push(event.violatedDirective));
addEventListener("load", () => {
  const table = document.querySelector("#table-summary");
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const column = (place) => [...table.tBodies[0].rows].map((row) => row.cells[place].innerText);
  const click = (place) => { heads[place].querySelector("button").click(); return column(place); };
  seen.names = heads.map((head) => head.innerText);
  seen.before = column(4);
  seen.descending = click(4);
  seen.mark = heads[4].getAttribute("aria-sort");
  seen.ascending = click(4);
  seen.words = click(0);
  seen.forgetting = click(5);
  const heightOf = (part) => part.getBoundingClientRect().height;
  const pictures = [...document.querySelectorAll("svg")];
  seen.sections = [...document.querySelectorAll("section")].map((part) => [part.id, heightOf(part)]);
  seen.flat = pictures.filter((picture) => picture.checkVisibility() && heightOf(picture) < 60).length;
  seen.pictures = pictures.length;
  seen.wide = document.documentElement.scrollWidth - innerWidth;
  const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.requests = loaded.filter((name) => !name.startsWith("data:"));
  seen.background = getComputedStyle(document.documentElement).backgroundColor;
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(seen);
  document.body.append(note);
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecgl_scale.report.content.MAX_DETAILED", 1)
        content = gather([FinishedRun.read(path) for path in make_comparison(folder / "runs")])
        text = render_page(content)
    (folder / "page.html").write_text(text.replace("<head>", f"<head>{WATCH}"), encoding="utf-8")
    return folder / "page.html"


@pytest.fixture(scope="module")
def browse(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[dict[str, Any], str]]:
    profile = tmp_path_factory.mktemp("profile")

    def visit(*options: str) -> tuple[dict[str, Any], str]:
        """What the page has seen, and what the browser has said."""
        command = [CHROMIUM or "", *QUIET, f"--user-data-dir={profile}", *options, "--dump-dom", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found, done.stderr
        return json.loads(unescape(found[1])), done.stderr

    return visit


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
    def numbers(texts: list[str]) -> list[float]:
        return [float(text.split(" ")[0]) for text in texts]

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
