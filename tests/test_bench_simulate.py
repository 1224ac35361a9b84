"""The simulator: its formulas, and that docs/scale.md has the numbers of its record."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.harness import RESULTS
from bench.simulate.__main__ import GRAPHS, MACHINES
from bench.simulate.model import Rates, simulate
from bench.simulate.page import MARK, PAGE, tables

RECORD = json.loads((RESULTS / "simulate.json").read_text(encoding="utf-8"))
RATES = Rates(**RECORD["rates"])
PAPERS, MACHINE = GRAPHS[0], next(iter(MACHINES.values()))


@pytest.mark.parametrize("name", ["rates", "check", "predictions"])
def test_a_table_of_the_page_is_that_of_the_record(name: str) -> None:
    begin, end = MARK.format(name, "begin"), MARK.format(name, "end")
    shown = PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    assert shown.strip() == tables(RECORD)[name], "run python -m bench.simulate.page"


def test_one_machine_exchanges_nothing_and_several_what_the_formula_says() -> None:
    assert simulate(PAPERS, MACHINE, 1, RATES)["sweep"].moved_bytes == 0
    moved = simulate(PAPERS, MACHINE, 16, RATES)["sweep"].moved_bytes
    assert moved == pytest.approx(4 * PAPERS.nodes + 32 * PAPERS.nodes / 16)


def test_edges_beyond_the_page_cache_are_read_from_files_in_every_sweep() -> None:
    small = replace(MACHINE, memory_bytes=4e9)
    cached, read = (simulate(PAPERS, machine, 1, RATES)["sweep"] for machine in (MACHINE, small))
    assert read.moved_bytes == 4 * PAPERS.edges
    assert read.seconds > cached.seconds


def test_an_epoch_has_no_more_ranks_than_lanes() -> None:
    some, many = (simulate(PAPERS, MACHINE, count, RATES)["epoch"].seconds for count in (16, 256))
    assert many == pytest.approx(some)


def test_the_record_is_what_the_formulas_give() -> None:
    row = next(row for row in RECORD["tables"] if row["graph"] == PAPERS.name and row["count"] == 16)
    assert row["sweep"]["seconds"] == pytest.approx(simulate(PAPERS, MACHINE, 16, RATES)["sweep"].seconds)


def test_of_one_and_two_workers_every_prediction_of_the_record_is_within_a_quarter_of_what_was_measured() -> None:
    checks = {check["num_workers"]: check for check in RECORD["checks"]}
    assert checks.keys() == {1, 2}
    for check in checks.values():
        for stage in ("sweep", "attribute", "diversity"):
            assert abs(check[stage]["predicted"] / check[stage]["measured"] - 1) <= 0.25, (check["num_workers"], stage)
