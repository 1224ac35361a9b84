"""Ranks that share lanes have the gradient, the loss and the squares of one process, bit for bit; and leave together.

Ranks are threads here, each with a process group of its own: what they exchange goes through the same sockets.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from ecgl_scale.errors import EcglError, RankLostError
from ecgl_scale.learn import lanes as lanes_module
from ecgl_scale.learn.lanes import NUM_LANES
from ecgl_scale.learn.ranks import RankLanes, Ranks, exchange_bytes, lanes_of
from tests.learn.test_lanes import BLOCK_ROWS, in_one, segments_of, trainer_of

SECONDS = 20


@pytest.fixture(autouse=True)
def small_lanes(monkeypatch):
    """A block of 16 rows fills a lane."""
    monkeypatch.setattr(lanes_module, "LEAST_LANE_WORK", BLOCK_ROWS)


def in_ranks(size, work):
    """What ``work(lanes)`` gives on each rank; an exception is given as it is."""
    store = dist.HashStore()

    def run(rank):
        ranks = Ranks(rank, size)
        try:
            ranks.connect(store, torch.device("cpu"), address="127.0.0.1", silent_seconds=SECONDS)
            return work(RankLanes(ranks))
        except BaseException as error:
            return error
        finally:
            ranks.disconnect()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size), timeout=3 * SECONDS))


def gradient_of(lanes, segments, squares=False, **settings):
    trainer = trainer_of(**settings)
    trainer.lane_sum = lanes
    with lanes.shared():
        loss = trainer.gradient(segments, task_index=1, epoch=2, squares=squares)
    return loss, [parameter.grad.numpy().tobytes() for parameter in trainer.weights.parameters()]


@pytest.mark.parametrize("size", [2, 3, 4, 16])
@pytest.mark.parametrize(("num_blocks", "kind", "by_columns"), [(1, "dense", False), (40, "sparse", True)])
def test_any_number_of_ranks_gives_the_bits_of_one(size, num_blocks, kind, by_columns):
    segments = segments_of(num_blocks, kind)
    for settings in ({"dropout": 0.5, "by_columns": by_columns}, {"squares": True}):
        wanted = in_one(segments, **settings)
        found = in_ranks(size, lambda lanes, settings=settings: gradient_of(lanes, segments, **settings))
        assert found == [wanted] * size


def test_epochs_of_ranks_end_with_the_weights_of_one():
    segments = segments_of(40)

    def train(lanes=None):
        trainer = trainer_of(dropout=0.3)
        for epoch in range(4):
            if lanes is None:
                trainer.run_epoch(segments, task_index=0, epoch=epoch)
                continue
            trainer.lane_sum = lanes
            with lanes.shared():
                trainer.run_epoch(segments, task_index=0, epoch=epoch)
                lanes.end_epoch(trainer.weights.parameters(), where="here")
        return [tensor.detach().numpy().tobytes() for tensor in trainer.weights.parameters()]

    assert in_ranks(2, train) == [train()] * 2


def test_what_is_not_shared_is_computed_alone():
    segments = segments_of(16)

    def alone(lanes):
        trainer = trainer_of()
        trainer.lane_sum = lanes
        return trainer.gradient(segments, task_index=1, epoch=2), [
            parameter.grad.numpy().tobytes() for parameter in trainer.weights.parameters()
        ]

    assert in_ranks(2, alone) == [in_one(segments)] * 2


@pytest.mark.parametrize("size", range(1, NUM_LANES + 1))
def test_every_lane_belongs_to_one_rank(size):
    lanes = [lanes_of(rank, size) for rank in range(size)]
    assert [lane for own in lanes for lane in own] == list(range(NUM_LANES))
    assert {len(own) for own in lanes} <= {NUM_LANES // size, -(-NUM_LANES // size)}


def test_a_weight_that_differs_is_found_and_its_rank_named():
    def train(lanes):
        trainer = trainer_of()
        trainer.lane_sum = lanes
        with lanes.shared():
            trainer.run_epoch(segments, task_index=0, epoch=0)
            if lanes.ranks.rank == 1:
                weight = trainer.weights.parameters()[0].detach().view(torch.int32)
                weight[0, 0] ^= 1
            lanes.end_epoch(trainer.weights.parameters(), where="task 0, epoch 0")

    segments = segments_of(16)
    for error in in_ranks(3, train):
        assert isinstance(error, EcglError)
        assert error.exit_code == 70
        assert "the weights of the ranks differ: rank 1 has" in str(error)
        assert "task 0, epoch 0" in str(error)


def test_blocks_that_are_cut_otherwise_are_found():
    segments = segments_of(16)

    def train(lanes):
        trainer = trainer_of()
        trainer.lane_sum = lanes
        with lanes.shared():
            trainer.run_epoch(segments, task_index=0, epoch=0)
            lanes._cut += lanes.ranks.rank
            lanes.end_epoch(trainer.weights.parameters(), where="here")

    assert all("the blocks of the ranks differ" in str(error) for error in in_ranks(2, train))


@pytest.mark.parametrize("size", [2, 3])
def test_a_stop_in_the_middle_of_an_epoch_is_seen_by_all_after_the_same_lane(size):
    segments = segments_of(16)

    def train(lanes):
        trainer = trainer_of()
        trainer.lane_sum = lanes
        with lanes.shared():
            lanes._arrived = [15] if lanes.ranks.rank == 1 else []
            try:
                trainer.gradient(segments)
            except RankLostError as stopped:
                return lanes._num_closed, stopped.what
        return None

    assert in_ranks(size, train) == [(1, "rank 1 was asked to stop")] * size


def test_a_stop_is_looked_for_after_short_epochs_only_at_their_end():
    segments = segments_of(16)

    def train(lanes):
        trainer, looks = trainer_of(), []
        trainer.lane_sum = lanes
        with lanes.shared():
            for epoch in range(2):
                trainer.run_epoch(segments, task_index=0, epoch=epoch)
                looks.append(lanes._num_looks)
                lanes._arrived = [15] if lanes.ranks.rank == 0 and epoch else []
                lanes.end_epoch(trainer.weights.parameters(), where="here")
                looks.append(lanes.stop_reason)
        return looks

    assert in_ranks(2, train) == [[8, None, 0, "rank 0 was asked to stop"]] * 2


def test_a_rank_that_is_gone_is_a_lost_rank():
    segments = segments_of(16)

    def train(lanes):
        if lanes.ranks.rank == 1:
            lanes.ranks.largest([1])
            return None
        lanes.ranks.largest([1])
        return gradient_of(lanes, segments)

    left, _ = in_ranks(2, train)
    assert isinstance(left, RankLostError)
    assert left.exit_code == 75


def test_the_memory_of_the_exchange_is_that_of_its_formula():
    segments, size = segments_of(40), 2

    def held(lanes):
        gradient_of(lanes, segments)
        return sum(buffer.nbytes for buffer in lanes._buffers.values())

    num_weights = sum(tensor.numel() for tensor in trainer_of().weights.parameters())
    for found in in_ranks(size, held):
        assert 0.8 * exchange_bytes(num_weights, size) < found < exchange_bytes(num_weights, size) + 4096
    assert exchange_bytes(num_weights, 1) == 0
