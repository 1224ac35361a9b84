"""Lanes are even runs of blocks that rows alone decide; two processes that share them get the bits of one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.learn import lanes as lanes_module
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.lanes import DENSE_ROW_WORK, LEAST_LANE_WORK, NUM_LANES, LaneSum, cut_lanes, cut_parts
from ecgl_scale.learn.loss import Labelled, LossSettings, make_segments
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import Trainer
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from tests.resources import at

NUM_FEATURES, NUM_CLASSES, BLOCK_ROWS = 12, 4, 16
POSITIONS = [np.array([0, 1]), np.array([2, 3])]
BLOCK_COUNTS = (1, 3, 16, 40)


@pytest.fixture
def small_lanes(monkeypatch):
    """A block of 16 rows fills a lane, dense or sparse."""
    monkeypatch.setattr(lanes_module, "LEAST_LANE_WORK", BLOCK_ROWS)


def rows_of(x, kind):
    if kind == "dense":
        return RowCache.from_array(x)
    matrix = sparse.csr_matrix(x)
    rows = CsrBlock(matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data)
    return RowCache.from_csr(rows, x.shape[1])


def segments_of(num_blocks, kind="dense", bank_kind="dense", seed=0):
    """The new task's blocks and, of several blocks, a bank that ends with a small one."""
    random = np.random.default_rng(seed)
    bank_blocks = min(num_blocks // 3, 5)
    counts = [(num_blocks - bank_blocks) * BLOCK_ROWS, bank_blocks * BLOCK_ROWS - 5 * (bank_blocks > 0)]
    x, bank_x = (
        (random.normal(size=(n, NUM_FEATURES)) * (random.random((n, NUM_FEATURES)) < 0.4)).astype(np.float32)
        for n in counts
    )
    new = Labelled.of_task(1, random.integers(2, 4, counts[0]), rows_of(x, kind))
    bank = Labelled(random.integers(0, 2, counts[1]), np.zeros(counts[1], np.int64), rows_of(bank_x, bank_kind))
    return make_segments(
        [new], bank if bank_blocks else None, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings()
    )


def trainer_of(*, dropout=0.0, by_columns=False):
    weights = SharedWeights.create(NUM_FEATURES, [10, 8], NUM_CLASSES, seed=3, by_columns=by_columns)
    return Trainer(weights, block_rows=BLOCK_ROWS, dropout=dropout, seed=5)


def lanes_used(trainer, segments):
    return [part.lane for part in cut_parts(segments, trainer._feed, trainer.weights.widths)]


class KeptLanes(LaneSum):
    """One of several processes: some lanes, kept one by one until all processes have theirs."""

    def __init__(self, lanes):
        super().__init__()
        self.lanes = lanes
        self.kept = {}

    def close(self, lane, loss):
        self.kept[lane] = float(loss), [gradient.numpy().copy() for gradient in self._gradients]
        for gradient in self._gradients:
            gradient.zero_()

    def reduce(self):
        return 0.0


def in_two_ranks(segments, squares=False, **settings):
    kept = {}
    for lanes in (range(8), range(8, 16)):
        trainer = trainer_of(**settings)
        trainer.lane_sum = KeptLanes(lanes)
        trainer.gradient(segments, task_index=1, epoch=2, squares=squares)
        assert set(trainer.lane_sum.kept) <= set(lanes)
        kept |= trainer.lane_sum.kept
    found = [kept[lane] for lane in sorted(kept)]
    loss, totals = found[0][0], [gradient.astype(np.float64) for gradient in found[0][1]]
    for more, gradients in found[1:]:
        loss += more
        totals = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
    return loss, [total.astype(np.float32).tobytes() for total in totals]


def in_one(segments, squares=False, **settings):
    trainer = trainer_of(**settings)
    loss = trainer.gradient(segments, task_index=1, epoch=2, squares=squares)
    return loss, [parameter.grad.numpy().tobytes() for parameter in trainer.weights.parameters()]


# --- who computes a lane changes no bit


@pytest.mark.usefixtures("small_lanes")
@pytest.mark.parametrize("num_blocks", BLOCK_COUNTS)
@pytest.mark.parametrize(
    ("kind", "bank_kind", "by_columns"),
    [
        ("dense", "dense", False),
        ("sparse", "sparse", False),
        ("sparse", "sparse", True),
        ("sparse", "dense", False),
        ("dense", "sparse", False),
    ],
)
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_two_ranks_give_the_bits_of_one(num_blocks, kind, bank_kind, by_columns, squares, dropout):
    segments = segments_of(num_blocks, kind, bank_kind)
    settings = {"dropout": dropout, "by_columns": by_columns, "squares": squares}
    assert in_two_ranks(segments, **settings) == in_one(segments, **settings)


@pytest.mark.usefixtures("small_lanes")
@pytest.mark.parametrize("num_blocks", BLOCK_COUNTS)
def test_all_blocks_are_spread_over_the_lanes(num_blocks):
    used = lanes_used(trainer_of(), segments_of(num_blocks))
    assert len(used) == num_blocks
    assert len(set(used)) == min(num_blocks, NUM_LANES)


@pytest.mark.usefixtures("small_lanes")
def test_lanes_change_the_gradient_by_rounding_only():
    segments = segments_of(40)
    loss, by_lanes = in_one(segments)
    whole = trainer_of()
    whole._feed._block_rows = 10_000
    assert whole.gradient(segments, task_index=1, epoch=2) == pytest.approx(loss, rel=1e-6)
    for parameter, found in zip(whole.weights.parameters(), by_lanes, strict=True):
        gradient = np.frombuffer(found, np.float32).reshape(parameter.shape)
        np.testing.assert_allclose(parameter.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)


def test_a_task_of_one_lane_is_summed_as_blocks_come_without_a_pass_or_a_buffer(monkeypatch):
    def refuse(*_):
        raise AssertionError("a pass over the weights")

    monkeypatch.setattr(LaneSum, "_pass", refuse)
    segments = segments_of(40)
    trainer = trainer_of()
    assert len(set(lanes_used(trainer, segments))) == 1
    loss = trainer.gradient(segments)
    assert trainer.lane_sum._totals == []
    plain = trainer_of()
    plain._mlp.begin()
    total = torch.zeros((), dtype=torch.float64)
    for segment in segments:
        for block, x in plain._feed.blocks(segment.rows, plain.weights.widths):
            total += plain._mlp.add(x, segment, slice(block.start, block.stop))
    assert loss == float(total)
    for one, other in zip(trainer.weights.parameters(), plain.weights.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.usefixtures("small_lanes")
def test_tensor_operations_add_lanes_to_the_same_bits(monkeypatch):
    """What a device does, on the CPU."""
    wanted = in_one(segments_of(40))

    def there(self, _, operation):
        for total, gradient in zip(self._totals, self._gradients, strict=True):
            operation(total, gradient)

    monkeypatch.setattr(LaneSum, "_pass", there)
    assert in_one(segments_of(40)) == wanted


@pytest.mark.usefixtures("small_lanes")
def test_threads_that_share_a_pass_change_no_bit(monkeypatch):
    wanted = in_one(segments_of(40))
    monkeypatch.setattr(lanes_module, "SERIAL_WEIGHTS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert in_one(segments_of(40)) == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("small_lanes")
def test_a_process_reads_the_blocks_of_its_own_lanes_only(monkeypatch):
    segments, read = segments_of(16), []
    source = type(segments[0].rows._source)
    plain = source.read
    monkeypatch.setattr(source, "read", lambda self, *where: (read.append(where[0]), plain(self, *where))[1])
    trainer = trainer_of()
    trainer.lane_sum = KeptLanes([0, 1, 5])
    trainer.gradient(segments)
    assert read == [0, 16, 80]


@pytest.mark.usefixtures("small_lanes")
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_graphs_are_a_block_each_and_stay_on_one_rank(tmp_path, dropout):
    rows, bank = segments_of(40)
    x = rows.rows.read(0, rows.num_rows)
    edges = np.random.default_rng(0).integers(0, rows.num_rows, (2, 3000))
    graph = GraphStore.from_edge_index(edges, x=x, path=tmp_path / "graph", num_nodes=rows.num_rows)
    propagation, local = GraphPropagation(graph, at(), "sym"), np.arange(0, rows.num_rows, 2)
    graphs = [
        GraphSegment(
            labels=rows.labels[local],
            coefficients=rows.coefficients[local] * weight,
            columns=rows.columns,
            rows=rows.rows,
            propagation=propagation,
            local=local,
        )
        for weight in (1, 2, 3)
    ]
    segments = [*graphs[:2], bank, graphs[2]]
    used = lanes_used(trainer_of(), segments)
    assert len(used) == 3 + 5
    assert used[0] < used[1] < used[-1]
    assert in_two_ranks(segments, dropout=dropout) == in_one(segments, dropout=dropout)


# --- the cut


@given(works=st.lists(st.integers(1, 5 * LEAST_LANE_WORK), min_size=1, max_size=200))
def test_lanes_are_runs_and_each_run_of_lanes_has_its_due_up_to_a_block(works):
    lanes = cut_lanes(works)
    assert all(one <= other for one, other in pairwise(lanes))
    assert 0 <= lanes[0] <= lanes[-1] < NUM_LANES
    num_shares = min(NUM_LANES, max(sum(works) // LEAST_LANE_WORK, 1))
    places = [(2 * share + 1) * NUM_LANES // (2 * num_shares) for share in range(num_shares)]
    assert set(lanes) <= set(places)
    for first in range(num_shares):
        for last in range(first, num_shares):
            own = sum(work for work, lane in zip(works, lanes, strict=True) if places[first] <= lane <= places[last])
            due = sum(works) * (last - first + 1) / num_shares
            assert abs(own - due) <= max(works)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 24, 40, 1000])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8, 16])
def test_equal_blocks_are_as_even_as_they_can_be_for_any_number_of_ranks(count, num_ranks):
    counts = np.bincount(cut_lanes([LEAST_LANE_WORK] * count), minlength=NUM_LANES).reshape(num_ranks, -1).sum(axis=1)
    assert counts.max() == -(-count // num_ranks)


def test_many_small_last_blocks_take_no_lanes_from_the_large_ones():
    large, small = [8 * LEAST_LANE_WORK] * 96, [8] * 30
    counts = np.bincount(cut_lanes(large + small)[:96], minlength=NUM_LANES)
    assert counts.tolist() == [6] * NUM_LANES


def test_small_tasks_are_one_lane_and_no_rows_none():
    assert len(set(cut_lanes([100] * 50))) == 1
    assert cut_lanes([]) == []
    assert len(cut_lanes([0, 0])) == 2


def test_sixteen_thousand_dense_rows_fill_all_lanes():
    num_rows = NUM_LANES * LEAST_LANE_WORK // DENSE_ROW_WORK
    x = np.zeros((num_rows, NUM_FEATURES), np.float32)
    new = Labelled.of_task(0, np.zeros(num_rows, np.int64), RowCache.from_array(x))
    segments = make_segments([new], None, positions=POSITIONS[:1], num_classes=4, settings=LossSettings())
    assert sorted(set(lanes_used(trainer_of(), segments))) == list(range(NUM_LANES))
