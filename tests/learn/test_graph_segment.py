"""Training as a graph has the formulas' gradients and is DGL's GraphConv training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import cross_entropy

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.learn.graph_segment import GraphSegment, plan_propagation
from ecgl_scale.learn.loss import Labelled, LossSettings, make_segments, make_targets
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import Trainer
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from tests.graph.matrices import GRAPHS, NORMS, NUM_NODES, dense_matrix, stored_graph
from tests.resources import at
from tests.store.graphs import random_edges

NUM_FEATURES, NUM_CLASSES = 12, 5


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The products here are tiny: threads of torch's would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(NUM_NODES, NUM_FEATURES)).astype(np.float32)


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory, request, x):
    return stored_graph(tmp_path_factory.mktemp("graph") / "store", x, request.param)


@pytest.fixture(scope="module")
def directed(tmp_path_factory, x):
    return stored_graph(tmp_path_factory.mktemp("directed") / "store", x, "directed")


# --- training


def labels_of(num, classes, seed=0):
    return np.random.default_rng(seed).choice(classes, num)


def graph_segment(graph, x, norm, local, labels, **settings):
    positions = [np.arange(NUM_CLASSES)]
    new = Labelled.of_task(0, labels)
    (targets,) = make_targets([new], None, positions=positions, num_classes=NUM_CLASSES, settings=LossSettings())
    return GraphSegment(
        labels=targets.labels,
        coefficients=targets.coefficients,
        columns=targets.columns,
        groups=targets.groups,
        rows=RowCache.from_array(x),
        propagation=GraphPropagation(graph, at(), norm),
        local=local,
        **settings,
    )


def test_sparse_rows_are_trained_on_as_dense_ones_and_never_become_dense(directed, x, monkeypatch):
    local, labels = np.arange(0, NUM_NODES, 2), labels_of(NUM_NODES // 2, NUM_CLASSES)
    dense = graph_segment(directed, x, "sym", local, labels)
    content = csr_matrix(x)
    block = CsrBlock(content.indptr.astype(np.int64), content.indices.astype(np.uint32), content.data)
    rows = replace(dense, rows=RowCache.from_csr(block, NUM_FEATURES))
    monkeypatch.setattr(RowCache, "read", lambda *_: pytest.fail("rows were made dense"))
    weights = SharedWeights.create(NUM_FEATURES, [8], NUM_CLASSES, seed=1)
    found = rows.logits(weights)
    monkeypatch.undo()
    torch.testing.assert_close(found, dense.logits(weights), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bias_place", ["inside", "outside"])
@pytest.mark.parametrize("hidden", [8, 40])
def test_the_gradient_is_that_of_the_formulas(graph, norm, bias_place, hidden, x):
    local, labels = np.arange(0, NUM_NODES, 2), labels_of(NUM_NODES // 2, NUM_CLASSES)
    segment = graph_segment(graph, x, norm, local, labels, bias_place=bias_place)
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [hidden], NUM_CLASSES))
    for _ in range(2):  # the second time with what the first has kept
        loss = trainer.gradient([segment])
    matrix = torch.from_numpy(dense_matrix(graph, norm))
    layers = [
        (w.detach().double().requires_grad_(), b.detach().double().requires_grad_()) for w, b in trainer.weights.layers
    ]
    h = torch.from_numpy(x).double()
    for index, (w, b) in enumerate(layers):
        h = h.relu() if index else h
        h = matrix @ (h @ w.T + b) if bias_place == "inside" else matrix @ (h @ w.T) + b
    losses = cross_entropy(h[torch.from_numpy(local)], torch.from_numpy(labels), reduction="none")
    total = losses @ torch.from_numpy(segment.coefficients).double()
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    wanted = [tensor for layer in layers for tensor in layer]
    for parameter, other in zip(trainer.weights.parameters(), wanted, strict=True):
        assert (parameter.grad.double() - other.grad).norm() / other.grad.norm() < 1e-5


@pytest.mark.parametrize(("norm", "theirs"), [("sym", "both"), ("sum", "none"), ("mean", "right")])
@pytest.mark.parametrize("hidden", [8, 40])
def test_the_gradient_is_that_of_dgls_graphconv(graph, norm, theirs, hidden, x):
    dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    source, target = graph.to_edge_index()
    keep = source != target
    peer = dgl.add_self_loop(dgl.graph((source[keep], target[keep]), num_nodes=NUM_NODES))
    local, labels = np.arange(0, NUM_NODES, 2), labels_of(NUM_NODES // 2, NUM_CLASSES)
    segment = graph_segment(graph, x, norm, local, labels, bias_place="outside")
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [hidden], NUM_CLASSES))
    loss = trainer.gradient([segment])
    convolutions = []
    for weight, bias in trainer.weights.layers:
        convolution = dgl.nn.GraphConv(weight.shape[1], weight.shape[0], norm=theirs)
        convolution.load_state_dict({"weight": weight.detach().T, "bias": bias.detach()})
        convolutions.append(convolution)
    logits = convolutions[1](peer, convolutions[0](peer, torch.from_numpy(x)).relu())
    losses = cross_entropy(logits[torch.from_numpy(local)], torch.from_numpy(labels), reduction="none")
    total = losses @ torch.from_numpy(segment.coefficients)
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    for (weight, bias), convolution in zip(trainer.weights.layers, convolutions, strict=True):
        for ours, other in ((weight.grad, convolution.weight.grad.T), (bias.grad, convolution.bias.grad)):
            assert (ours - other).norm() / other.norm() < 1e-5


def test_bank_rows_stand_beside_the_graph_as_if_they_were_nodes_alone(directed, x, tmp_path):
    """The same loss as over one graph that has the bank's rows as nodes without edges."""
    local, labels = np.arange(0, 200, 2), labels_of(100, NUM_CLASSES)
    alone = np.arange(NUM_NODES - 20, NUM_NODES)
    bank_labels = labels_of(20, NUM_CLASSES, seed=4)
    whole = graph_segment(directed, x, "sym", np.concatenate([local, alone]), np.concatenate([labels, bank_labels]))
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [16], NUM_CLASSES))
    wanted = trainer.gradient([whole])
    gradients = [tensor.grad.clone() for tensor in trainer.weights.parameters()]
    new, bank = whole.coefficients[:100], whole.coefficients[100:]
    part = replace(whole, labels=labels, coefficients=new, local=local)
    rows = Labelled.of_task(0, bank_labels, RowCache.from_array(x[alone]))
    settings = LossSettings(balance="none", reduction="sum")
    (beside,) = make_segments([rows], None, positions=[np.arange(5)], num_classes=5, settings=settings)
    assert trainer.gradient([part, replace(beside, coefficients=bank)]) == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(gradients, trainer.weights.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("encoder", ["gcn", "sage", "sgc"])
def test_training_as_a_graph_learns_and_repeats(graph, x, encoder):
    local, labels = np.arange(NUM_NODES), labels_of(NUM_NODES, NUM_CLASSES)

    def train():
        norm = "mean" if encoder == "sage" else "sym"
        segment = graph_segment(graph, x, norm, local, labels, encoder=encoder)
        trainer = Trainer(SharedWeights.create(NUM_FEATURES, [32], NUM_CLASSES), lr=0.02, dropout=0.2, seed=1)
        return [trainer.run_epoch([segment], task_index=0, epoch=epoch).loss for epoch in range(30)]

    losses = train()
    assert losses[-1] < 0.95 * losses[0]
    assert train() == losses


def test_messages_of_the_features_are_sent_once(directed, x, monkeypatch):
    sent = []
    send = GraphPropagation.send
    monkeypatch.setattr(
        GraphPropagation, "send", lambda self, h, **how: (sent.append(h.shape[1]), send(self, h, **how))[1]
    )
    local, labels = np.arange(NUM_NODES), labels_of(NUM_NODES, NUM_CLASSES)
    segment = graph_segment(directed, x, "sym", local, labels, bias_place="outside")
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [32], NUM_CLASSES))
    for epoch in range(3):
        trainer.run_epoch([segment], task_index=0, epoch=epoch)
    assert sent.count(NUM_FEATURES) == 1
    assert sent.count(NUM_CLASSES) == 6


# --- memory and bad input


def test_the_graph_and_an_epoch_on_it_stay_within_the_plan(tmp_path):
    num_nodes, widths = 60_000, (64, 128, 20)
    x = np.random.default_rng(0).random((num_nodes, 64), np.float32)
    path = tmp_path / "store"
    graph = GraphStore.from_edge_index(random_edges(num_nodes, 600_000), x=x, path=path, num_nodes=num_nodes)
    plan = plan_propagation(graph, widths)
    before = own_memory_bytes() - x.nbytes
    with PeakSampler() as sampler:
        (targets,) = make_targets(
            [Labelled.of_task(0, labels_of(num_nodes, 20))],
            None,
            positions=[np.arange(20)],
            num_classes=20,
            settings=LossSettings(),
        )
        segment = GraphSegment(
            labels=targets.labels,
            coefficients=targets.coefficients,
            columns=targets.columns,
            rows=RowCache.from_array(x),
            propagation=GraphPropagation(graph, at(), "sym"),
            local=np.arange(num_nodes),
        )
        trainer = Trainer(SharedWeights.create(64, [128], 20))
        for epoch in range(2):
            trainer.run_epoch([segment], task_index=0, epoch=epoch)
    assert sampler.peak_bytes - before <= 1.1 * plan.host_bytes


def test_senseless_input_is_refused(directed, x):
    with pytest.raises(UsageError, match="labelled"):
        graph_segment(directed, x, "sym", np.arange(7), labels_of(8, NUM_CLASSES))
    segment = graph_segment(directed, x, "sym", np.arange(8), labels_of(8, NUM_CLASSES))
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [4], NUM_CLASSES), batching="minibatch")
    with pytest.raises(UsageError, match="mini-batches"):
        trainer.run_epoch([segment], task_index=0, epoch=0)
