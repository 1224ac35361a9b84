"""``make bench``: figures are found in the records that there are, ratios are what they say, and time is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import bandwidth, harness, plots, quick
from bench.quick_cases import CASES

RECORDS = Path(harness.__file__).parent / "results"
RATES = {"memory": 1e10, "lines": 1e9, "page_cache": 4e9, "disk": 2e9, "write": 1e9, "product": 1e11}


def record_of(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_every_figure_is_in_the_record_of_its_case(name: str) -> None:
    """The large records have the layout of the small ones."""
    rows = quick.rows_of(name, record_of(name), RATES, {})
    assert [row["what"] for row in rows] == [figure.what for figure in CASES[name].figures]
    for row in rows:
        assert row["seconds"] > 0
        assert row["times_faster_than"] == {peer: other / row["seconds"] for peer, other in row["peers"].items()}
        if "limit" in row:
            assert row["times_limit"] == pytest.approx(
                row["seconds"] * RATES[row["limit"]["rate"]] / row["limit"]["amount"]
            )
            assert row["times_limit"] > 0.01


def test_a_peer_that_was_not_measured_is_left_out() -> None:
    found = record_of("build_peers")
    del found["seconds"]["dgl"]
    (row,) = quick.rows_of("build_peers", found, RATES, {})
    assert list(row["times_faster_than"]) == ["scipy"]


def test_names_of_figures_tell_them_apart_and_limits_are_rates_that_are_measured() -> None:
    figures = [figure for case in CASES.values() for figure in case.figures]
    assert len({figure.what for figure in figures}) == len(figures)
    assert {figure.limit.rate for figure in figures if figure.limit is not None} <= set(RATES)


def test_a_figure_is_compared_with_the_last_record_of_the_same_size_alone() -> None:
    (first, *_) = rows = quick.rows_of("attribute", record_of("attribute"), RATES, {})
    halved = {row["what"]: {**row, "seconds": row["seconds"] * 2} for row in rows}
    assert quick.rows_of("attribute", record_of("attribute"), RATES, halved)[0]["times_last_record"] == 2
    halved[first["what"]]["arguments"] = "--rows 3"
    assert "times_last_record" not in quick.rows_of("attribute", record_of("attribute"), RATES, halved)[0]


def test_cases_that_there_is_no_time_for_keep_their_record_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "measured": {"processor": harness.processor()},
        "rows": quick.rows_of("ranks", record_of("ranks"), RATES, {}),
    }
    monkeypatch.setattr(quick, "measure", lambda work: RATES)
    found = quick.run(tmp_path, ["ranks"], -1, known)
    assert (found["rows"], found["left_out"]) == (known["rows"], ["ranks"])
    assert "no time left for ranks" in quick.render(found)
    assert quick.run(tmp_path, ["ranks"], -1, {**known, "measured": {"processor": "another"}})["rows"] == []


def test_a_case_runs_at_its_size_and_leaves_the_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "measure", lambda work: RATES)
    monkeypatch.setitem(
        quick.CASES,
        "attribute",
        quick.CASES["attribute"].__class__("--rows 2000 --repeats 1", quick.CASES["attribute"].figures),
    )
    before = (RECORDS / "attribute.json").read_bytes()
    found = quick.run(tmp_path, ["attribute"], 5, {})
    assert (RECORDS / "attribute.json").read_bytes() == before
    assert json.loads((tmp_path / "results" / "attribute.json").read_text())["num_rows"] == 2000
    assert [row["limit"]["amount"] for row in found["rows"]] == [2 * 2000 * 100**2] * 2
    table = quick.render(found)
    assert all(figure.what in table for figure in CASES["attribute"].figures)
    assert "| `product` | 100.0 |" in table


def test_rates_of_this_machine_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "drop_page_cache", lambda: False)  # the machine's caches are not ours to empty here
    monkeypatch.setattr(bandwidth, "SIDE", 64)
    rates = bandwidth.measure(tmp_path, 1 << 22, repeats=1)
    assert set(rates) == {"memory", "lines", "page_cache", "write", "product"}
    assert min(rates.values()) > 0
    assert not list(tmp_path.iterdir())


def test_the_plot_has_a_line_for_each_stage_and_peer(tmp_path: Path) -> None:
    seconds, memory = plots.series(record_of("build_scale"), record_of("pagerank"))
    assert {"build a store", "a sweep, warm", "a sweep by DGL"} <= set(seconds)
    assert all(len(points) > 1 for points in (*seconds.values(), *memory.values()))
    plots.draw(seconds, memory, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert drawn.count("<!-- a sweep by DGL -->") == 2
