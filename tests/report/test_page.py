"""The page is one file that asks for nothing, escapes what it shows, and carries its numbers."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ecgl_scale.errors import UsageError
from ecgl_scale.report.content import Content, gather, save_figures
from ecgl_scale.report.page import render_page
from ecgl_scale.report.palette import INK, RAMP, SHADES, line_style, series_shade, with_roles
from ecgl_scale.report.picture import WHOLE_WIDTH_INCHES, WIDTH_INCHES, legend_below, legend_columns
from ecgl_scale.report.runs import FinishedRun
from tests.report.made_runs import make_comparison, make_run, sample, samples, write_lines


class Elements(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def content_of(*paths: Path) -> Content:
    return gather([FinishedRun.read(path) for path in paths])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    runs = make_comparison(tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecgl_scale.report.content.MAX_DETAILED", 2)
        return render_page(content_of(*runs))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_page(content_of(make_run(tmp_path_factory.mktemp("runs") / "a")))


def test_nothing_is_loaded_from_anywhere(comparison: str) -> None:
    for tag, attributes in Elements(comparison).tags:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, name, value[:80])
    assert not re.search(r"@import|url\((?!#)", comparison)
    assert "default-src 'none'" in comparison


def test_a_comparison_has_all_its_sections_and_a_single_run_only_those_that_make_sense(
    comparison: str, single: str
) -> None:
    def sections(page: str) -> list[str | None]:
        return [attributes["id"] for tag, attributes in Elements(page).tags if tag == "section"]

    assert sections(comparison) == ["summary", "comparison", "learning", "sensitivity", "details"]
    assert sections(single) == ["summary", "details"]
    for text in ("Performance matrix", "Training loss", "Memory over time", "Planned and measured", "versions"):
        assert text in single


def test_ids_are_unique_and_links_within_the_page_lead_somewhere(comparison: str) -> None:
    tags = Elements(comparison).tags
    ids = Counter(attributes["id"] for _, attributes in tags if "id" in attributes)
    assert [name for name, count in ids.items() if count > 1] == []
    targets = {value[1:] for _, attributes in tags if (value := attributes.get("href") or "").startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", comparison))
    assert targets - set(ids) == set()


def test_every_table_and_figure_offers_its_numbers(comparison: str) -> None:
    tags = Elements(comparison).tags
    links = [attributes for tag, attributes in tags if tag == "a" and "download" in attributes]
    assert len(links) == sum(tag == "figure" for tag, _ in tags)
    for link in links:
        text = base64.b64decode((link["href"] or "").partition("base64,")[2]).decode()
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) > 1, link["download"]
        assert {len(row) for row in rows} == {len(rows[0])}


def test_names_from_files_are_escaped_and_a_dollar_stays_one(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>"&$x^$'
    page = render_page(
        content_of(
            make_run(tmp_path / "a", store=f"x/{evil}.ecgl", method=evil),
            make_run(tmp_path / "b", store=f"x/{evil}.ecgl", bank__budget=evil),
        )
    )
    assert "<script>alert" not in page
    assert sum(tag == "script" for tag, _ in Elements(page).tags) == 1
    assert "$x^$" in Elements(page).text


def test_pictures_take_their_colours_from_the_page(single: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", single, re.DOTALL))
    assert INK.variable in drawn
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) == set()
    assert len({shade.light for shade in SHADES}) == len(SHADES)
    assert with_roles("fill: #1c2127; stroke: #123456") == "fill: var(--ink); stroke: #123456"
    assert RAMP[0].light != RAMP[-1].light


def test_the_same_runs_give_the_same_pictures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    one, two = ([picture.inline_svg() for picture in content_of(run).pictures()] for _ in range(2))
    assert one == two


def test_figures_are_written_as_svg_png_and_csv(tmp_path: Path) -> None:
    content = content_of(make_run(tmp_path / "a"))
    count = save_figures(content, tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert len(names) == count
    for picture in content.pictures():
        assert {f"{picture.name}.{kind}" for kind in ("svg", "png", "csv")} <= names
    assert (tmp_path / "figures" / "variant-1-matrix.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "figures" / "variant-1-matrix.csv").read_text().splitlines()
    assert lines[:2] == ["after_task,tested_on_task,accuracy_percent,deviation", "0,0,90.0,0.0"]


def test_a_resumed_run_has_one_timeline_without_the_pause(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    second = [{"version": 1, "started": 9000.0}, sample(9000.5, "train", 2), sample(9001.0, "evaluate", 3)]
    write_lines(run / "memory.jsonl", [*samples(), *second])
    with (run / "memory.jsonl").open("a") as file:
        file.write('{"time": 9001.5, "sta')
    found = FinishedRun.read(run).samples
    assert [round(found[place].seconds, 1) for place in (39, 40, 41)] == [3.9, 4.4, 4.9]
    assert [found[place].process for place in (39, 40)] == [0, 1]
    assert [found[place].read_bytes for place in (39, 40, 41)] == [390, 410, 420]
    assert "resumed" in render_page(content_of(run))


def test_a_run_of_one_task_and_one_of_many_are_drawn(tmp_path: Path) -> None:
    import json

    for num_tasks in (1, 30):
        run = make_run(tmp_path / str(num_tasks))
        results = json.loads((run / "results.json").read_text())
        results["matrix"] = [[50.0 if j <= t else None for j in range(num_tasks)] for t in range(num_tasks)]
        results["af"] = None if num_tasks == 1 else 0.0
        (run / "results.json").write_text(json.dumps(results))
        assert "Performance matrix" in render_page(content_of(run))


def test_a_title_that_names_some_of_the_methods_counts_the_others(tmp_path: Path) -> None:
    content = content_of(*(make_run(tmp_path / str(n), method=f"m{n}") for n in range(8)))
    assert content.title == "m0, m1, m2, m3, m4, m5 and 2 more on graph"


def test_twelve_methods_all_have_a_line_of_their_own_looks(tmp_path: Path) -> None:
    (picture,) = content_of(*(make_run(tmp_path / str(n), method=f"m{n}", gain=-n) for n in range(12))).learning
    assert len({row[0] for row in picture.rows}) == 12
    assert "left out" not in picture.note
    assert len({repr((series_shade(n), line_style(n))) for n in range(12)}) == 12


@pytest.mark.parametrize("length", [5, 30, 45, 200])
def test_a_legend_stays_within_its_picture(length: int) -> None:
    """By the letters of matplotlib's own font, which is a wide one; a browser has narrower ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for width in (WIDTH_INCHES, WHOLE_WIDTH_INCHES):
        labels = [f"{n}{'x=0, ' * (length // 5)}" for n in range(5)]
        figure = Figure(figsize=(width, 4), layout="constrained")
        canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
        for label in labels:
            axes.plot([0, 1], [0, 1], label=label)
        legend_below(figure, axes, columns=legend_columns(labels, width_inches=width))
        canvas.draw()
        assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


def test_a_band_is_spoken_of_only_where_there_are_several_seeds(tmp_path: Path) -> None:
    def note(*seeds: int) -> str:
        folder = tmp_path / str(len(seeds))
        runs = [make_run(folder / f"{b}-{seed}", bank__budget=b, seed=seed) for b in (10, 20) for seed in seeds]
        (picture,) = content_of(*runs).sensitivity
        return picture.note

    assert "band" not in note(0)
    assert "band" in note(0, 1)


def test_lines_of_a_sensitivity_figure_are_named_by_what_sets_them_apart(tmp_path: Path) -> None:
    grid = [(budget, ratio) for budget in (10, 50, 200) for ratio in (0.25, 1.0)]
    runs = [make_run(tmp_path / f"{b}-{r}", bank__budget=b, bank__diversity_ratio=r) for b, r in grid]
    figures = {picture.name: picture for picture in content_of(*runs).sensitivity}
    budgets = figures["sensitivity-bank-budget"]
    assert {row[0] for row in budgets.rows} == {"ecgl, bank.diversity_ratio=0.25", "ecgl, bank.diversity_ratio=1.0"}
    ticks = re.findall(r">(10|50|200)</text>", budgets.render("svg").decode())
    assert ticks == ["10", "50", "200"] * 2


def test_no_runs_are_an_error() -> None:
    with pytest.raises(UsageError, match="no run"):
        gather([])
