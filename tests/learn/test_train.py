"""A streamed epoch is the in-memory full batch: loss, gradient and steps; its bits depend on no way of reading."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn.functional import cross_entropy

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.learn import adam as adam_module
from ecgl_scale.learn.adam import Adam
from ecgl_scale.learn.feed import block_rows_for
from ecgl_scale.learn.loss import Labelled, LossSettings, make_segments
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.learn.train import Trainer, plan_training
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import MIB

NUM_CLASSES, NUM_FEATURES = 6, 30
POSITIONS = [np.array([0, 1]), np.array([2, 4]), np.array([3, 5])]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The products here are tiny: threads of torch's would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def x():
    random = np.random.default_rng(0)
    dense = random.normal(size=(1000, NUM_FEATURES)).astype(np.float32)
    return dense * (random.random(dense.shape) < 0.3)


@pytest.fixture(scope="module")
def bank_x():
    return np.random.default_rng(5).normal(size=(120, NUM_FEATURES)).astype(np.float32)


LABELS = np.random.default_rng(1).choice([3, 5], 1000, p=[0.8, 0.2])
BANK_LABELS = (
    np.random.default_rng(2).choice([0, 1], 60).tolist() + np.random.default_rng(3).choice([2, 4], 60).tolist()
)
BANK_TASKS = np.repeat([0, 1], 60)


def rows_of(kind, x, tmp_path):
    ids = np.arange(len(x))
    if kind == "sparse":
        matrix = sparse.csr_matrix(x)
        rows = CsrBlock(matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data)
        return RowCache.from_csr(rows, x.shape[1])
    cache = RowCache.gather(
        x, ids, memory_bytes=0 if kind == "disk" else 1 << 40, directory=tmp_path, name=f"{len(x)}-{kind}"
    )
    assert cache.kind == kind
    return cache


@pytest.fixture
def segments_of(x, bank_x, tmp_path):
    def make(kind="memory", with_bank=True, **settings):
        new = Labelled.of_task(2, LABELS, rows_of(kind, x, tmp_path))
        bank = Labelled(np.array(BANK_LABELS), BANK_TASKS, rows_of(kind, bank_x, tmp_path)) if with_bank else None
        loss = LossSettings(**settings)
        return make_segments([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=loss)

    return make


def weights(seed=0, hidden=(40,)):
    return SharedWeights.create(NUM_FEATURES, list(hidden), NUM_CLASSES, seed=seed)


def full_batch(model, segments, dtype=torch.float64):
    """The whole loss at once, by autograd, on all columns with the barred ones at minus infinity."""
    layers = [(w.detach().to(dtype).requires_grad_(), b.detach().to(dtype).requires_grad_()) for w, b in model.layers]
    total = torch.zeros((), dtype=dtype)
    for segment in segments:
        h = torch.from_numpy(segment.rows.read(0, segment.rows.num_rows).astype(np.float64)).to(dtype)
        for index, (w, b) in enumerate(layers):
            h = (h.relu() if index else h) @ w.T + b
        columns = segment.columns if segment.groups is None else segment.columns[segment.groups]
        h = h.masked_fill(~torch.from_numpy(np.broadcast_to(columns, tuple(h.shape)).copy()), float("-inf"))
        losses = cross_entropy(h, torch.from_numpy(segment.labels), reduction="none")
        total = total + losses @ torch.from_numpy(segment.coefficients.astype(np.float64)).to(dtype)
    total.backward()
    return total.item(), [tensor.grad for layer in layers for tensor in layer]


def assert_same_gradient(model, wanted):
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        error = (parameter.grad.double() - gradient.double()).norm() / gradient.double().norm()
        assert error < 1e-5


# --- the full batch's loss and gradient


@pytest.mark.parametrize("kind", ["memory", "disk", "sparse"])
@pytest.mark.parametrize("setting", ["task-il", "class-il"])
@pytest.mark.parametrize("block_rows", [16, 100, 5000, None])
def test_loss_and_gradient_are_the_full_batchs(segments_of, kind, setting, block_rows):
    segments = segments_of(kind, setting=setting)
    trainer = Trainer(weights(), block_rows=block_rows)
    loss = trainer.gradient(segments)
    wanted_loss, wanted = full_batch(trainer.weights, segments)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert_same_gradient(trainer.weights, wanted)


@pytest.mark.parametrize("balance", ["none", "task", "unified", "reference"])
@pytest.mark.parametrize("replay_slice", ["own", "seen"])
def test_every_loss_has_the_full_batchs_gradient(segments_of, balance, replay_slice):
    for reduction in ("mean", "sum"):
        segments = segments_of(
            setting="task-il", balance=balance, replay_slice=replay_slice, reduction=reduction, lambda_=0.7
        )
        trainer = Trainer(weights(hidden=(20, 10)), block_rows=64)
        loss = trainer.gradient(segments)
        wanted_loss, wanted = full_batch(trainer.weights, segments)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)
        assert_same_gradient(trainer.weights, wanted)


def test_a_gradient_does_not_add_to_the_one_before(segments_of):
    trainer = Trainer(weights())
    first = trainer.gradient(segments_of())
    assert trainer.gradient(segments_of()) == first
    assert_same_gradient(trainer.weights, full_batch(trainer.weights, segments_of())[1])


def test_epochs_follow_torchs_own_full_batch_training(segments_of):
    segments = segments_of(setting="class-il")
    trainer = Trainer(weights(), block_rows=256, lr=0.005, weight_decay=5e-4)
    layers = [torch.nn.Linear(NUM_FEATURES, 40), torch.nn.Linear(40, NUM_CLASSES)]
    for layer, (w, b) in zip(layers, trainer.weights.layers, strict=True):
        layer.load_state_dict({"weight": w.detach(), "bias": b.detach()})
    peer = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    optimizer = torch.optim.Adam(peer.parameters(), lr=0.005, weight_decay=5e-4)
    for epoch in range(20):
        optimizer.zero_grad()
        total = 0.0
        for segment in segments:
            logits = peer(torch.from_numpy(segment.rows.read(0, segment.num_rows)))
            losses = cross_entropy(logits, torch.from_numpy(segment.labels), reduction="none")
            total = total + losses @ torch.from_numpy(segment.coefficients)
        total.backward()
        optimizer.step()
        result = trainer.run_epoch(segments, task_index=0, epoch=epoch)
        assert result.loss == pytest.approx(total.item(), rel=1e-4)
        assert result.seconds > 0
    for parameter, other in zip(trainer.weights.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-4)


# --- the same bits


def bits_after(segments, *, epochs=3, **settings):
    trainer = Trainer(weights(), block_rows=96, seed=7, **settings)
    losses = [trainer.run_epoch(segments, task_index=1, epoch=epoch).loss for epoch in range(epochs)]
    return losses, [tensor.detach().numpy().tobytes() for tensor in trainer.weights.parameters()]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("batching", ["full", "minibatch"])
def test_bits_do_not_depend_on_reading_ahead_threads_or_where_rows_are(segments_of, dropout, batching):
    settings = {"dropout": dropout, "batching": batching, "batch_rows": 100}
    wanted = bits_after(segments_of("memory"), **settings)
    for read_ahead, threads in [(0, 1), (1, 1), (3, 2)]:
        assert bits_after(segments_of("disk"), read_ahead=read_ahead, threads=threads, **settings) == wanted


def test_sparse_rows_give_the_same_bits_whatever_is_read_ahead(segments_of):
    wanted = bits_after(segments_of("sparse"))
    assert bits_after(segments_of("sparse"), read_ahead=3, threads=2) == wanted


@pytest.mark.parametrize("batching", ["full", "minibatch"])
def test_a_resumed_training_ends_with_the_same_bits(segments_of, tmp_path, batching):
    settings = {"block_rows": 96, "dropout": 0.3, "seed": 7, "batching": batching, "batch_rows": 100}
    segments = segments_of()
    undisturbed = Trainer(weights(), **settings)
    for epoch in range(4):
        undisturbed.run_epoch(segments, task_index=0, epoch=epoch)
    killed = Trainer(weights(), **settings)
    for epoch in range(2):
        killed.run_epoch(segments, task_index=0, epoch=epoch)
    arrays = {name: tensor.numpy() for name, tensor in killed.state().items()}
    save_tensors(tmp_path / "state.safetensors", arrays, about={"kind": "checkpoint"})
    killed.run_epoch(segments, task_index=0, epoch=2)
    resumed = Trainer(weights(seed=99), **settings)
    loaded, about = load_tensors(tmp_path / "state.safetensors")
    assert about["kind"] == "checkpoint"
    resumed.load_state({name: torch.from_numpy(array) for name, array in loaded.items()})
    for epoch in range(2, 4):
        resumed.run_epoch(segments, task_index=0, epoch=epoch)
    for one, other in zip(undisturbed.state().values(), resumed.state().values(), strict=True):
        assert torch.equal(one, other)


def test_dropout_differs_by_seed_task_and_epoch(segments_of):
    segments = segments_of(with_bank=False)

    def loss(seed=0, task_index=0, epoch=0):
        return Trainer(weights(), dropout=0.5, seed=seed).gradient(segments, task_index=task_index, epoch=epoch)

    assert loss() == loss()
    assert len({loss(), loss(seed=1), loss(task_index=1), loss(epoch=1)}) == 4


# --- mini-batches


def test_one_batch_of_all_rows_is_the_full_batch(segments_of):
    found = []
    for batching in ("full", "minibatch"):
        trainer = Trainer(weights(), batching=batching, batch_rows=10_000)
        found.append((trainer.run_epoch(segments_of(), task_index=0, epoch=0).loss, trainer.weights))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for one, other in zip(found[0][1].parameters(), found[1][1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("setting", ["task-il", "class-il"])
def test_batches_are_one_step_each_and_their_gradients_average_to_the_full_ones(segments_of, monkeypatch, setting):
    segments = segments_of(setting=setting)
    gradients = []

    def remember(self):
        gradients.append([tensor.grad.clone() for tensor in self._parameters])

    monkeypatch.setattr(Adam, "step", remember)
    trainer = Trainer(weights(), batching="minibatch", batch_rows=112)
    trainer.run_epoch(segments, task_index=0, epoch=0)
    assert len(gradients) == 10
    mean = [torch.stack(tensors).mean(dim=0) for tensors in zip(*gradients, strict=True)]
    _, wanted = full_batch(trainer.weights, segments)
    for one, other in zip(mean, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


def test_batches_come_in_another_order_in_every_epoch(segments_of):
    def after(**where):
        trainer = Trainer(weights(), batching="minibatch", batch_rows=50)
        trainer.run_epoch(segments_of("sparse"), **where)
        return trainer.weights.layers[0][0].detach().numpy().tobytes()

    assert after(task_index=0, epoch=0) == after(task_index=0, epoch=0)
    assert len({after(task_index=0, epoch=0), after(task_index=1, epoch=0), after(task_index=0, epoch=1)}) == 3


# --- the optimizer


@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
@pytest.mark.parametrize("way", ["by rows", "by columns", "tensor operations"])
def test_adam_is_torchs_adam(weight_decay, way, monkeypatch):
    ours = torch.randn(50, 20)
    theirs = ours.clone().requires_grad_()
    if way == "by columns":
        ours = ours.t().contiguous().t()
    if way == "tensor operations":
        monkeypatch.setattr(Adam, "_step_here", Adam._step_on_device)
    monkeypatch.setattr(adam_module, "SERIAL_WEIGHTS", 100)
    ours.requires_grad_()
    adam = Adam([ours], lr=0.01, weight_decay=weight_decay)
    peer = torch.optim.Adam([theirs], lr=0.01, weight_decay=weight_decay)
    for step in range(30):
        gradient = torch.randn(50, 20, generator=torch.Generator().manual_seed(step))
        ours.grad, theirs.grad = torch.empty_like(ours).copy_(gradient), gradient.clone()
        adam.step()
        peer.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_moments_are_carried_over_until_they_are_reset(segments_of):
    trainer = Trainer(weights())
    trainer.run_epoch(segments_of(), task_index=0, epoch=0)
    assert int(trainer.state()["adam.step"]) == 1
    assert trainer.state()["adam.mean.0"].abs().sum() > 0
    trainer.reset_optimizer()
    assert int(trainer.state()["adam.step"]) == 0
    assert not any(tensor.abs().sum() for name, tensor in trainer.state().items() if name.startswith("adam."))


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_grown_head_goes_on_with_the_old_moments_and_none_for_new_rows(x, by_columns):
    def segments(num_classes):
        labels = np.arange(len(x)) % num_classes
        positions, settings = [np.arange(num_classes)], LossSettings()
        part = Labelled.of_task(0, labels, RowCache.from_array(x))
        return make_segments([part], None, positions=positions, num_classes=num_classes, settings=settings)

    trainer = Trainer(SharedWeights.create(x.shape[1], [6], 3, by_columns=by_columns), block_rows=100)
    for epoch in range(3):
        trainer.run_epoch(segments(3), task_index=0, epoch=epoch)
    before = trainer.state()
    trainer.grow_head(5)
    after = trainer.state()
    assert after["adam.step"] == before["adam.step"] == 3
    for name, old in before.items():
        if old.ndim:
            assert torch.equal(after[name][: len(old)], old)
            assert not after[name][len(old) :].any()
    theirs = [torch.nn.Parameter(tensor.detach().clone()) for tensor in trainer.weights.parameters()]
    adam = torch.optim.Adam(theirs, lr=0.005, weight_decay=0.0005)
    for index, tensor in enumerate(theirs):
        moments = {"exp_avg": after[f"adam.mean.{index}"], "exp_avg_sq": after[f"adam.square.{index}"]}
        adam.state[tensor] = {"step": torch.tensor(3.0), **moments}
    trainer.gradient(segments(5), task_index=1)
    for tensor, ours in zip(theirs, trainer.weights.parameters(), strict=True):
        tensor.grad = ours.grad.clone()
    adam.step()
    trainer.run_epoch(segments(5), task_index=1, epoch=0)
    for tensor, ours in zip(theirs, trainer.weights.parameters(), strict=True):
        torch.testing.assert_close(ours, tensor, rtol=1e-5, atol=1e-7)


def test_a_penalty_is_added_to_loss_and_gradient(segments_of):
    plain, with_penalty = Trainer(weights()), Trainer(weights())
    first = plain.run_epoch(segments_of(), task_index=0, epoch=0)
    second = with_penalty.run_epoch(
        segments_of(),
        task_index=0,
        epoch=0,
        penalty=lambda w: 3 * sum(tensor.square().sum() for tensor in w.parameters()),
    )
    start = weights()
    wanted = 3 * sum(tensor.square().sum().item() for tensor in start.parameters())
    assert second.loss == pytest.approx(first.loss + wanted, rel=1e-5)
    assert not torch.equal(plain.weights.layers[0][0], with_penalty.weights.layers[0][0])


# --- what else it does


def test_logits_of_all_rows_are_the_mlps(segments_of, x):
    trainer = Trainer(weights(), block_rows=64, dropout=0.5)
    wanted = trainer.weights.mlp(torch.from_numpy(x)).detach().numpy()
    for kind in ("memory", "disk", "sparse"):
        np.testing.assert_allclose(trainer.logits(segments_of(kind)[0].rows), wanted, rtol=1e-4, atol=1e-5)


def test_training_learns(segments_of):
    segments = segments_of(setting="class-il")
    trainer = Trainer(weights(), lr=0.02)
    losses = [trainer.run_epoch(segments, task_index=0, epoch=epoch).loss for epoch in range(60)]
    assert losses[-1] < 0.6 * losses[0]


def test_training_does_not_import_torchs_compiler():
    """It takes seconds and a hundred MiB; other tests here use torch.optim, so a process of its own is asked."""
    import subprocess

    code = (
        "import sys, numpy as np\n"
        "from ecgl_scale.learn.model import SharedWeights\n"
        "from ecgl_scale.learn.train import Trainer\n"
        "Trainer(SharedWeights.create(2, [3], 2))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_an_epoch_stays_within_its_plan(tmp_path, kind):
    num_rows, widths = 200_000, (100, 256, 47)
    random = np.random.default_rng(0)
    x = random.random((num_rows, widths[0]), np.float32)
    rows = rows_of(kind, x, tmp_path)
    del x
    new = Labelled.of_task(0, random.integers(0, 47, num_rows), rows)
    segments = make_segments([new], None, positions=[np.arange(47)], num_classes=47, settings=LossSettings())
    small = Labelled.of_task(0, new.labels[:32], rows.select(np.arange(32)))
    warm = make_segments([small], None, positions=[np.arange(47)], num_classes=47, settings=LossSettings())
    Trainer(SharedWeights.create(100, [256], 47)).run_epoch(warm, task_index=0, epoch=0)
    plan = plan_training(widths, rows_held=kind == "memory", num_rows=num_rows)
    before = own_memory_bytes()
    trainer = Trainer(SharedWeights.create(100, [256], 47))
    with PeakSampler() as sampler:
        for epoch in range(2):
            trainer.run_epoch(segments, task_index=0, epoch=epoch)
    assert sampler.peak_bytes - before <= 1.1 * plan.host_bytes
    assert plan.host_bytes < 150 * MIB
    assert plan.blocks == -(-num_rows // block_rows_for(widths, None, is_sparse=False))


# --- bad input


@pytest.mark.parametrize(
    "wrong", [{"dropout": 1.0}, {"batch_rows": 0}, {"lr": 0}, {"batching": "some"}, {"read_ahead": -1}]
)
def test_senseless_settings_are_refused(wrong):
    with pytest.raises(UsageError):
        Trainer(weights(), **wrong)


def test_a_senseless_block_is_refused(segments_of):
    with pytest.raises(UsageError, match="block_rows"):
        Trainer(weights(), block_rows=0).gradient(segments_of())


def test_rows_of_another_width_are_refused(segments_of):
    with pytest.raises(UsageError, match=f"rows have {NUM_FEATURES} features, the model takes 7"):
        Trainer(SharedWeights.create(7, [4], NUM_CLASSES)).gradient(segments_of())


def test_a_loss_that_is_not_finite_is_said_with_its_place(segments_of, x):
    x = x.copy()
    x[3, 3] = np.inf
    new = Labelled.of_task(2, LABELS, RowCache.from_array(x))
    segments = make_segments([new], None, positions=POSITIONS, num_classes=6, settings=LossSettings())
    with pytest.raises(InvalidInputError, match="task 4, epoch 17"):
        Trainer(weights()).run_epoch(segments, task_index=4, epoch=17)


def test_a_checkpoint_of_another_model_is_refused():
    state = Trainer(weights()).state()
    with pytest.raises(InvalidInputError, match=r"parameter.0 is of shape \[40, 30\]"):
        Trainer(weights(hidden=(41,))).load_state(state)
    del state["adam.mean.1"]
    with pytest.raises(InvalidInputError, match="missing"):
        Trainer(weights()).load_state(state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("kind", ["memory", "disk", "sparse"])
def test_a_gpu_has_the_same_gradient(segments_of, kind):
    segments = segments_of(kind)
    trainer = Trainer(weights(), device="cuda", block_rows=64)
    loss = trainer.gradient(segments)
    wanted_loss, wanted = full_batch(weights(), segments)
    assert loss == pytest.approx(wanted_loss, rel=1e-4)
    for parameter, gradient in zip(trainer.weights.parameters(), wanted, strict=True):
        assert (parameter.grad.cpu().double() - gradient).norm() / gradient.norm() < 1e-4
