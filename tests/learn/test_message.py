"""Messages have the formulas' values and gradients; training as a graph is DGL's GraphConv training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import cross_entropy

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.learn.loss import Labelled, LossSettings, make_segments, make_targets
from ecgl_scale.learn.message import GraphPropagation, GraphSegment, plan_propagation
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import Trainer
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import MIB
from tests.resources import at
from tests.store.graphs import random_edges

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 300, 12, 5
NORMS = ["sym", "sum", "mean"]
GRAPHS = {
    "directed": BuildOptions(),
    "symmetric": BuildOptions(symmetrise=True),
    "with loops": BuildOptions(self_loops="add"),
    "repeated edges": BuildOptions(keep_duplicates=True, self_loops="keep"),
}


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
    """The last nodes have no edge at all."""
    edges = random_edges(NUM_NODES - 20, 1500, seed=3)
    path = tmp_path_factory.mktemp("graph") / "store"
    return GraphStore.from_edge_index(edges, x=x, path=path, num_nodes=NUM_NODES, options=GRAPHS[request.param])


@pytest.fixture(scope="module")
def directed(tmp_path_factory, x):
    edges = random_edges(NUM_NODES - 20, 1500, seed=3)
    path = tmp_path_factory.mktemp("directed") / "store"
    return GraphStore.from_edge_index(edges, x=x, path=path, num_nodes=NUM_NODES, options=BuildOptions())


def dense_matrix(graph, norm):
    """P as the formula says, in float64."""
    source, target = graph.to_edge_index()
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(a, (target, source), 1.0)
    np.fill_diagonal(a, 1.0)
    in_degrees, out_degrees = a.sum(1), a.sum(0)
    if norm == "sum":
        return torch.from_numpy(a)
    if norm == "mean":
        return torch.from_numpy(a / in_degrees[:, None])
    return torch.from_numpy(a / np.sqrt(in_degrees)[:, None] / np.sqrt(out_degrees)[None])


# --- P and its gradient


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("norm", NORMS)
def test_messages_and_their_gradient_are_the_matrixs(graph, norm, backend, x):
    propagation = GraphPropagation(graph, at(), norm, backend=backend)
    matrix = dense_matrix(graph, norm)
    given = torch.from_numpy(x).requires_grad_()
    sent = propagation(given)
    torch.testing.assert_close(sent.double(), matrix @ torch.from_numpy(x).double(), rtol=1e-5, atol=1e-5)
    weights = torch.randn(sent.shape, generator=torch.Generator().manual_seed(1))
    sent.backward(weights)
    torch.testing.assert_close(given.grad.double(), matrix.T @ weights.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_torchs_own_check_of_gradients_passes(tmp_path, norm):
    small = GraphStore.from_edge_index(random_edges(8, 20), path=tmp_path / "store", num_nodes=9)
    propagation = GraphPropagation(small, at(), norm)
    given = torch.rand(9, 3, dtype=torch.float64, requires_grad=True)
    # The kernel adds in float32; it is linear, so a large step loses nothing.
    assert torch.autograd.gradcheck(propagation, given, eps=0.5, atol=1e-4, rtol=1e-4, nondet_tol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_any_number_of_threads_gives_the_same_bits(graph, norm, x):
    def bits(threads):
        given = torch.from_numpy(x).requires_grad_()
        sent = GraphPropagation(graph, at(threads=threads), norm)(given)
        sent.square().sum().backward()
        return sent.detach().numpy().tobytes(), given.grad.numpy().tobytes()

    assert bits(1) == bits(2) == bits(5)


def test_a_symmetric_graph_is_held_once(tmp_path):
    edges = random_edges(100, 400)
    for symmetrise in (True, False):
        graph = GraphStore.from_edge_index(
            edges, path=tmp_path / str(symmetrise), num_nodes=100, options=BuildOptions(symmetrise=symmetrise)
        )
        propagation = GraphPropagation(graph, at(), "sym")
        assert (propagation._into is propagation._out_of) == symmetrise


def test_a_node_alone_keeps_its_row_under_every_norm(directed, x):
    for norm in NORMS:
        sent = GraphPropagation(directed, at(), norm)(torch.from_numpy(x))
        np.testing.assert_allclose(sent[-20:].numpy(), x[-20:], rtol=1e-6)


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
    matrix = dense_matrix(graph, norm)
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


def test_a_graph_that_does_not_fit_is_refused_before_it_is_read(directed):
    with pytest.raises(DoesNotFitError, match="task graph"):
        GraphPropagation(directed, at(memory=1 * MIB))


def test_senseless_input_is_refused(directed, x):
    with pytest.raises(UsageError, match="'max'"):
        GraphPropagation(directed, at(), "max")
    with pytest.raises(UsageError, match="shape"):
        GraphPropagation(directed, at())(torch.ones(3, 3))
    with pytest.raises(UsageError, match="labelled"):
        graph_segment(directed, x, "sym", np.arange(7), labels_of(8, NUM_CLASSES))
    segment = graph_segment(directed, x, "sym", np.arange(8), labels_of(8, NUM_CLASSES))
    trainer = Trainer(SharedWeights.create(NUM_FEATURES, [4], NUM_CLASSES), batching="minibatch")
    with pytest.raises(UsageError, match="mini-batches"):
        trainer.run_epoch([segment], task_index=0, epoch=0)


@pytest.mark.parametrize("norm", NORMS)
def test_a_small_graph_in_memory_sends_the_same_messages(directed, x, norm):
    rows = [directed.edges.in_neighbours(node) for node in range(NUM_NODES)]
    rows = [np.asarray(sources)[sources != node] for node, sources in enumerate(rows)]
    indptr = np.concatenate([[0], np.cumsum([sources.size for sources in rows])])
    small = GraphPropagation.from_csr(indptr, np.concatenate(rows), norm)
    stored = GraphPropagation(directed, at(), norm)
    values = torch.from_numpy(x)
    assert torch.equal(small(values), stored(values))
    assert torch.equal(small.send(values, backwards=True), stored.send(values, backwards=True))
