"""Debian's chromium without a window: opens a page and tells what it has seen there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

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
  // a page of one run has no summary table: there its tasks are the first
  const table = document.querySelector("#table-summary") || document.querySelector("table.sortable");
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


def watched(text: str) -> str:
    """A page with the script in it."""
    assert "<head>" in text
    return text.replace("<head>", f"<head>{WATCH}", 1)


def visit(page: Path, profile: Path, *options: str) -> tuple[dict[str, Any], str]:
    """What a watched page has seen, and what the browser has said."""
    command = [CHROMIUM or "", *QUIET, f"--user-data-dir={profile}", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(unescape(found[1])), done.stderr


def numbers(texts: list[str]) -> list[float]:
    """Of cells such as ``80.5 ± 0.5``."""
    return [float(text.split(" ")[0].replace("\N{MINUS SIGN}", "-")) for text in texts]
