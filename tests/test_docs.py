"""The documentation does what it says: its code blocks run, and docs/commands.md names every command and option."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer

from ecgl_scale.cli.main import app
from ecgl_scale.errors import EcglError, ExitCode, StopRequestedError
from tests.cli_runner import run_cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = {"python", "console", "sh"}
NOT_RUN = re.compile(r"<!--\s*not run:(.*?)-->")
COMMANDS_PAGE = ROOT / "docs" / "commands.md"


@dataclass(frozen=True)
class CodeBlock:
    kind: str
    line: int
    text: str
    skipped: str | None
    """Why it is not run; None if it is."""


def code_blocks(page: str) -> Iterator[CodeBlock]:
    lines = page.splitlines()
    start, kind = None, ""
    for number, line in enumerate(lines):
        if start is None and (fence := re.fullmatch(r"```(\w*)\s*", line)):
            start, kind = number, fence[1]
        elif start is not None and line.strip() == "```":
            before = next((text for text in reversed(lines[:start]) if text.strip()), "")
            mark = NOT_RUN.fullmatch(before.strip())
            yield CodeBlock(kind, start + 1, "\n".join(lines[start + 1 : number]), mark[1].strip() if mark else None)
            start = None
    assert start is None, f"the code block of line {start} is not closed"


def shell_script(block: CodeBlock) -> tuple[str, list[str]]:
    """Commands of a console block, and the lines of output shown; those with ``...`` are not compared."""
    if block.kind == "sh":
        return block.text, []
    commands, shown, continued = [], [], False
    for line in block.text.splitlines():
        if continued or line.startswith("$ "):
            commands.append(line if continued else line[2:])
            continued = line.endswith("\\")
        elif line.strip() and "..." not in line:
            shown.append(line)
    return "\n".join(commands), shown


def run_shell(block: CodeBlock, commands: Path) -> None:
    script, shown = shell_script(block)
    assert script.strip(), f"line {block.line}: a console block without a line that starts with '$ '"
    assert not re.search(r"^\s*make\b", script, re.MULTILINE), "mark blocks with make as not run: CI runs them"
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"line {block.line}: exit {done.returncode}\n{script}\n{done.stdout}"
    printed = {line.rstrip() for line in done.stdout.splitlines()}
    missing = [line for line in shown if line.rstrip() not in printed]
    assert missing == [], f"line {block.line}: not printed\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_commands: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in code_blocks(page.read_text(encoding="utf-8")):
        if block.skipped is not None:
            assert block.skipped, f"line {block.line}: say why it is not run"
        elif block.kind == "python":
            # beside, not in, the working directory: pages may list it
            script = tmp_path.with_name(f"{tmp_path.name}-line-{block.line}.py")
            script.write_text(block.text, encoding="utf-8")
            # In a process of its own, as a reader's: this one holds what hundreds of tests have left in it.
            run_shell(replace(block, kind="sh", text=f"python {shlex.quote(str(script))}"), warm_commands)
        elif block.kind in RUN:
            run_shell(block, warm_commands)


def test_the_pages_have_blocks_that_run() -> None:
    blocks = [block for page in PAGES for block in code_blocks(page.read_text(encoding="utf-8"))]
    assert {block.kind for block in blocks if block.skipped is None} >= {"python", "console"}


def test_a_broken_block_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_commands: Path) -> None:
    monkeypatch.chdir(tmp_path)
    page = "text\n\n<!-- not run: later -->\n```sh\nfalse\n```\n\n```console\n$ echo a \\\n  b\na b\n$ true\n```\n"
    skipped, run = code_blocks(page)
    assert (skipped.skipped, run.skipped) == ("later", None)
    run_shell(run, warm_commands)
    with pytest.raises(AssertionError, match="not printed"):
        run_shell(CodeBlock("console", 1, "$ echo a\nb", None), warm_commands)
    with pytest.raises(AssertionError, match="exit 1"):
        run_shell(CodeBlock("console", 1, "$ false\n$ true", None), warm_commands)
    with pytest.raises(AssertionError, match="CI runs them"):
        run_shell(CodeBlock("console", 1, "$ make test", None), warm_commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
        leads_to = page.parent / target if target else page
        assert leads_to.exists(), target
        assert not anchor or anchor in anchors_of(leads_to.read_text(encoding="utf-8")), f"{target}#{anchor}"


def anchors_of(text: str) -> set[str]:
    return {slug(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def real_commands(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
    """Each command as typed, with its options."""
    options = {
        text
        for parameter in command.params
        for text in (*parameter.opts, *parameter.secondary_opts)
        if text.startswith("-") and text not in ("-h", "--help")
    }
    yield name, options
    for inner_name, inner in getattr(command, "commands", {}).items():
        yield from real_commands(inner, f"{name} {inner_name}")


COMMANDS = dict(real_commands(typer.main.get_command(app), "ecgl"))


def sections_of(page: str) -> dict[str, str]:
    parts = re.split(r"^##+ (.*)$", page, flags=re.MULTILINE)
    return {slug(title): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_and_each_of_its_options_is_documented(command: str) -> None:
    sections = sections_of(COMMANDS_PAGE.read_text(encoding="utf-8"))
    assert slug(command) in sections, f"docs/commands.md has no section {command!r}"
    own = sections[slug(command)]
    text = own + "".join(sections[anchor] for anchor in re.findall(r"\]\(#([^)]+)\)", own))
    missing = {option for option in COMMANDS[command] if not re.search(rf"(?<![\w-]){option}(?![\w-])", text)}
    assert missing == set()


def test_the_commands_are_all_found() -> None:
    assert {"ecgl doctor", "ecgl generate kron", "ecgl ingest edges", "ecgl info", "ecgl verify"} <= COMMANDS.keys()
    assert "--symmetrise" in COMMANDS["ecgl ingest npz"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_an_option_that_does_not_exist(page: Path) -> None:
    known = {"--help", *(option for options in COMMANDS.values() for option in options)}
    text = re.sub(r"^#SBATCH .*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)  # SLURM's own options
    text = re.sub(r"^torchrun .*?-m ecgl_scale", "", text, flags=re.MULTILINE | re.DOTALL)  # and torch's
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - known == set()


def test_every_exit_code_is_documented() -> None:
    rows = set(re.findall(r"^\| (\d+) \|", COMMANDS_PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    used = {kind.exit_code for kind in (*every_subclass(EcglError), StopRequestedError)}
    used |= {ExitCode.DONE, ExitCode.INTERRUPTED}
    assert rows == {str(int(code)) for code in used} == {str(int(code)) for code in ExitCode}
    advice = set(
        re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "batch-jobs.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert advice == rows | {"137"}


def every_subclass(kind: type[EcglError]) -> Iterator[type[EcglError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from every_subclass(inner)


def test_help_of_each_command_says_what_it_does() -> None:
    for command in COMMANDS:
        shown = run_cli(*command.split()[1:], "--help").stdout
        assert shown.startswith(f"Usage: {command} ")
        assert len(shown.splitlines()[2].strip()) > 10
