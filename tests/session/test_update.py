"""A model goes on: a chain of updates is the run on the whole stream, bit for bit, however it was disturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session.run import run
from ecgl_scale.session.update import update
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, read_json, write_store

YEARS = ("tasks.kind=time", "tasks.column=year", FEW_EPOCHS)
NUMBERS = ("aa", "af", "matrix", "aa_micro", "matrix_micro", "final_losses", "num_epochs", "split_hash", "num_tasks")


@pytest.fixture(scope="module")
def first_year(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same graph before anybody knew the labels of later years."""
    early = replace(drawn, y=np.where(drawn.year == 2000, drawn.y, -1))
    return write_store(tmp_path_factory.mktemp("early") / "graph.ecgl", early)


def chain(first: Path, store: Path, out: Path, *overrides: str) -> Path:
    """A run on the first year, and an update for each of the others, as versions of one model."""
    run(config_of(first, None, *overrides), out)
    for year in (2001, 2002):
        update(out, store, out, where=f"year == {year}")
    return out / "versions" / "0002"


def check_same(found: Path, wanted: Path) -> None:
    results, whole = (read_json(path / "results.json") for path in (found, wanted))
    assert {name: results[name] for name in NUMBERS} == {name: whole[name] for name in NUMBERS}
    assert read_json(found / "state.json")["losses"] == read_json(wanted / "state.json")["losses"]
    for name in ("model.safetensors",):
        arrays, others = (load_tensors(path / "weights" / name)[0] for path in (found, wanted))
        assert arrays.keys() == others.keys()
        assert all(np.array_equal(arrays[key], others[key]) for key in arrays)
    assert (found / "bank.arrow").exists() == (wanted / "bank.arrow").exists()
    if (wanted / "bank.arrow").exists():
        assert (found / "bank.arrow").read_bytes() == (wanted / "bank.arrow").read_bytes()


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("setting=task-il", "preset=paper"),
        ("method=ewc",),
        ("method=lwf",),
        ("method=gem",),
        ("method=cat",),
        ("method=joint",),
        ("learn.scale=standard", "tasks.inter_task_edges=true"),
    ],
    ids=" ".join,
)
def test_a_chain_of_updates_is_the_run_on_the_whole_stream(
    first_year: Path, store: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run(config_of(store, None, *YEARS, *overrides), tmp_path / "whole")
    check_same(chain(first_year, store, tmp_path / "model", *YEARS, *overrides), tmp_path / "whole")
