"""docs/commands.md has what the program says of itself: commands, options, defaults, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecgl_scale.cli.command_docs import marked_part, page_parts, update_page
from ecgl_scale.errors import ExitCode, UsageError
from tests.cli_runner import run_cli

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
UPDATE = "from pathlib import Path; from ecgl_scale.cli.command_docs import update_page; update_page(Path('{}'))"
PARTS = page_parts()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_page_is_what_the_program_gives(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert marked_part(name, PARTS[name]) in page, f'run python -c "{UPDATE.format(PAGE)}"'


def rows_of(part: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in PARTS[part].splitlines() if line.startswith("| ")]
    return {row[0]: [cell.strip() for cell in row[1:]] for row in rows[1:]}


def test_rows_say_values_default_and_meaning() -> None:
    rows = rows_of("ecgl rank")
    assert rows["`--kind`"][:2] == ["`importance`, `diversity` or `both`", "`importance`"]
    assert rows["`--out`"][:2] == ["`FILE`", "required"]
    assert rows["`--max-iter`"][:2] == ["integer", "`100`"]
    assert rows["`--quota`"][2].endswith("Needs `--topk`.")
    assert rows_of("ecgl generate kron")["`--scale`"][0] == "integer >= 1 and <= 40"
    assert rows_of("ecgl generate sbm")["`--homophily`"][:2] == ["number >= 0 and <= 1", "`0.8`"]
    assert rows_of("ecgl")["`--progress`, `--no-progress`"][1] == "`--progress`"
    assert "`NAME\\|PATH`" in rows_of("ecgl ingest ogb")


def test_shared_options_are_listed_once() -> None:
    assert PARTS["ecgl ingest npz"].endswith(
        "And the [edge options](#edge-options), [build options](#build-options) and [worker options](#worker-options)."
    )
    assert PARTS["ecgl generate sbm"].endswith(
        "And the [build options](#build-options) and [worker options](#worker-options)."
    )
    assert "`--overwrite`" in rows_of("build options")
    assert rows_of("edge options").keys().isdisjoint(rows_of("build options"))
    assert "`--symmetrise`" not in rows_of("ecgl ingest edges")
    assert "`--memory`" in rows_of("ecgl rank")


def test_every_option_says_what_it_means_in_a_sentence() -> None:
    for name, part in PARTS.items():
        cells = [line.rstrip(" |") for line in part.splitlines() if line.startswith(("| `", "| ["))]
        assert [cell for cell in cells if not cell.endswith(".")] == [], name


def test_exit_codes_have_their_meaning_from_the_program() -> None:
    assert rows_of("exit codes") == {str(int(code)): [code.meaning] for code in ExitCode}


def test_the_page_is_updated_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8").replace("--damping", "--dumping"), encoding="utf-8")
    update_page(page)
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ecgl rank", "exit codes"])
def test_a_page_without_a_place_for_a_part_is_refused(tmp_path: Path, name: str) -> None:
    page = tmp_path / "page.md"
    text = PAGE.read_text(encoding="utf-8")
    page.write_text(text.replace(marked_part(name, PARTS[name]), ""), encoding="utf-8")
    with pytest.raises(UsageError, match=f"no place for {name}"):
        update_page(page)
    page.write_text(text + marked_part("ecgl dance", ""), encoding="utf-8")
    with pytest.raises(UsageError, match="too many for ecgl dance"):
        update_page(page)


@pytest.mark.parametrize("name", [name for name in PARTS if name.startswith("ecgl")])
def test_help_fits_a_terminal_of_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_cli(*name.split()[1:], "--help").stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) > 3
