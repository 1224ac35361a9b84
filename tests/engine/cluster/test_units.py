"""Units: every block is in one, owners keep theirs, others take from whoever has most, records keep their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.cluster.units import (
    AHEAD_PER_WORKER,
    UNITS_PER_WORKER,
    Unit,
    UnitQueue,
    UnitShape,
    cut_units,
    read_blocks,
)


def shape(workers: int = 2, threads: int = 1, *, alone: bool = False, small: bool = True) -> UnitShape:
    return UnitShape(workers, threads, one_at_a_time=alone, has_small_records=small)


def taken(queue: UnitQueue, owner: int, num_owners: int) -> Unit:
    unit = queue.take(owner, num_owners)
    assert unit is not None
    return unit


@given(
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([True, False]),
)
def test_every_block_is_in_one_unit_whatever_the_shape(
    num_blocks: int, workers: int, threads: int, alone: bool, small: bool, is_list: bool
) -> None:
    blocks = split_blocks(num_blocks * 3, 3)
    chosen = UnitShape(workers, threads, alone, small)
    units = list(cut_units(blocks if is_list else iter(blocks), chosen))
    assert sorted(block.index for unit in units for block in unit.blocks) == list(range(num_blocks))
    assert [unit.index for unit in units] == list(range(len(units)))
    assert all(unit.blocks for unit in units)


def test_small_records_are_dealt_like_cards_into_a_few_units_for_each_worker() -> None:
    units = list(cut_units(split_blocks(100, 1), shape(3)))
    assert len(units) == 3 * UNITS_PER_WORKER
    assert [block.index for block in units[1].blocks[:3]] == [1, 13, 25]


def test_a_unit_keeps_all_threads_of_a_worker_busy_where_blocks_suffice() -> None:
    assert [len(unit.blocks) for unit in cut_units(split_blocks(6, 1), shape(2, threads=4))] == [3, 3]
    assert [len(unit.blocks) for unit in cut_units(split_blocks(9, 1), shape(2, threads=4, small=False))] == [4, 4, 1]


def test_a_block_that_uses_all_threads_is_a_unit_alone() -> None:
    assert [len(unit.blocks) for unit in cut_units(split_blocks(5, 1), shape(2, 4, alone=True))] == [1] * 5


def test_a_unit_travels_as_text() -> None:
    unit = Unit(3, (Block(1, 0, 5), Block(7, 35, 40)))
    assert read_blocks(unit.as_text()) == list(unit.blocks)


@pytest.mark.parametrize(
    ("indices", "name"), [([4], "block 4"), ([4, 5], "blocks 4, 5"), ([0, 2, 4, 6, 8], "blocks 0, 2, 4, 6, …")]
)
def test_a_unit_is_named_by_its_blocks(indices: list[int], name: str) -> None:
    assert Unit(0, tuple(Block(index, index, index + 1) for index in indices)).name == name


def test_an_owner_gets_the_same_units_in_every_round() -> None:
    rounds = [UnitQueue(split_blocks(64, 1), shape(2)) for _ in range(2)]
    first, second = ([taken(queue, owner, 2) for owner in (0, 1, 0, 1)] for queue in rounds)
    assert first == second
    assert [unit.index % 2 for unit in first] == [0, 1, 0, 1]


def test_who_is_done_takes_the_last_unit_of_whoever_has_most() -> None:
    queue = UnitQueue(split_blocks(64, 1), shape(2))
    own = [taken(queue, 0, 2) for _ in range(UNITS_PER_WORKER)]
    assert [unit.index for unit in own] == [0, 2, 4, 6]
    assert taken(queue, 0, 2).index == 7
    assert [taken(queue, 1, 2).index for _ in range(3)] == [1, 3, 5]
    assert queue.take(1, 2) is None


def test_records_are_given_on_in_the_order_of_the_blocks_whoever_was_first() -> None:
    blocks = split_blocks(16, 1)
    queue = UnitQueue(blocks, shape(2))
    assert queue.next_in({1, 2}) is None
    done = set(range(16))
    given_on = [queue.next_in(done) for _ in range(16)]
    assert given_on == blocks
    assert queue.next_in(done) is None


def test_large_records_are_not_begun_far_ahead_of_the_first_that_is_missing() -> None:
    asked = 0

    def blocks() -> Iterator[Block]:
        nonlocal asked
        for block in split_blocks(1000, 1):
            asked += 1
            yield block

    queue = UnitQueue(blocks(), shape(2, small=False))
    units = []
    while (unit := queue.take(0, 2)) is not None:
        units.append(unit)
    assert len(units) == asked == 2 * AHEAD_PER_WORKER
    assert queue.next_in({0}) == Block(0, 0, 1)
    assert taken(queue, 1, 2).blocks[0].index == 2 * AHEAD_PER_WORKER
    assert queue.take(0, 2) is None


def test_a_list_of_blocks_with_large_records_has_the_same_window() -> None:
    queue = UnitQueue(split_blocks(1000, 1), shape(1, small=False))
    assert sum(queue.take(0, 1) is not None for _ in range(50)) == AHEAD_PER_WORKER


def test_no_blocks_are_no_units() -> None:
    assert UnitQueue([], shape()).take(0, 2) is None
