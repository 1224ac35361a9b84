"""Results as they were recorded before a change that must not change any: stores, rankings, every method's runs.

``records/`` was made by ``python -m tests.golden.record`` and holds what users get: bytes of stores, scores, losses,
weights, accuracies, remembered nodes, predictions. One may record anew only in a commit of its own that says which
numbers change and why; a change of code that is meant to keep results comes with no change of a record. A new case is
recorded with ``--only``. The cases use commands and documented files alone, so they hold however the source is laid
out; what is compared how is said in ``compare``. All runs have one thread: with more, torch may split a matrix
product another way and round its last digit differently.
"""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import pytest

from tests.golden.cases import CASES, Case
from tests.golden.compare import CLOSE, RULES, differences
from tests.golden.measure import World, measure
from tests.golden.record import RECORDS, compare, read_record

EXAMPLE: dict[str, Any] = {
    "exact": {"split_hash": "b912", "num_tasks": 4},
    "bits": {"weights": "630434076"},
    "close": {"losses": [[0.6878146434667396, 1.381248791952336], [2.0, 0.0]]},
    "trained": {"weights": {"positive": 7.665804101154208}},
    "percent": {"aa": 51.25, "af": None},
    "chosen": {"bank": " ".join(f"0:{node}" for node in range(64))},
    "labels": {"predicted": "1 2 3 4"},
    "fingerprint": "that of another machine",
}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_as_recorded(case: Case, world: World) -> None:
    if "dgl" in case.name and importlib.util.find_spec("dgl") is None:
        pytest.skip("there is no DGL for this Python or machine")
    record = read_record(case)
    assert record, f"{case.name} was never recorded"
    lines = compare(case, record, measure(case, world))
    assert not lines, "\n".join([f"{len(lines)} values are not as recorded:", *lines[:20]])


def test_every_record_is_of_a_case_and_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert {path.stem for path in RECORDS.glob("*.json")} == set(names)


@pytest.mark.parametrize("expect_bits", [True, False])
def test_a_record_equals_itself(expect_bits: bool) -> None:
    assert differences(EXAMPLE, copy.deepcopy(EXAMPLE), expect_bits=expect_bits) == []


CHANGES = {
    "the last bit of a loss": (("close", "losses", 0, 1), 1.3812487919523362, True, False),
    "the sixth digit of a loss": (("close", "losses", 0, 1), 1.38126, True, True),
    "the last bit of a sum of weights": (("trained", "weights", "positive"), 7.665804101154209, True, False),
    "the fifth digit of a sum of weights": (("trained", "weights", "positive"), 7.6659, True, True),
    "a zero that is none any more": (("close", "losses", 1, 1), 1e-12, True, True),
    "a loss that became NaN": (("close", "losses", 0, 0), float("nan"), True, True),
    "a float that became an integer": (("close", "losses", 1, 0), 2, True, True),
    "an epoch more": (("close", "losses", 0), [0.6878146434667396, 1.381248791952336, 1.0], True, True),
    "a bit of a weight": (("bits", "weights"), "630434077", True, False),
    "a split": (("exact", "split_hash"), "b913", True, True),
    "an accuracy by a node": (("percent", "aa"), 52.5, True, False),
    "an accuracy by many nodes": (("percent", "aa"), 71.25, True, True),
    "an accuracy where there was none": (("percent", "af"), 0.0, True, True),
    "one remembered node": (("chosen", "bank"), EXAMPLE["chosen"]["bank"].replace("0:7 ", "0:99 "), True, False),
    "a remembered node less": (("chosen", "bank"), EXAMPLE["chosen"]["bank"].replace("0:7 ", ""), True, True),
    "other remembered nodes": (("chosen", "bank"), " ".join(f"1:{node}" for node in range(64)), True, True),
    "the label of one node": (("labels", "predicted"), "1 2 3 5", True, False),
    "the labels of two nodes": (("labels", "predicted"), "1 2 4 3", True, True),
    "a part that is gone": (("percent",), {}, True, True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_digit_is_caught_in_both_modes_unless_it_may_be_rounding(what: str) -> None:
    path, value, is_caught_with_bits, is_caught_without = CHANGES[what]
    changed = copy.deepcopy(EXAMPLE)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert bool(differences(EXAMPLE, changed, expect_bits=True)) is is_caught_with_bits
    assert bool(differences(EXAMPLE, changed, expect_bits=False)) is is_caught_without


def test_every_part_of_every_record_has_a_rule() -> None:
    parts = {part for case in CASES for part in read_record(case)}
    assert parts == {*RULES, *CLOSE, "fingerprint"}
