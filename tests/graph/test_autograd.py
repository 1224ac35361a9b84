"""Messages have the formulas' values and gradients, whatever loops a store has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB
from tests.graph.matrices import GRAPHS, NORMS, NUM_NODES, dense_matrix, stored_graph
from tests.resources import at
from tests.store.graphs import random_edges


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(NUM_NODES, 12)).astype(np.float32)


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory, request, x):
    return stored_graph(tmp_path_factory.mktemp("graph") / "store", x, request.param)


@pytest.fixture(scope="module")
def directed(tmp_path_factory, x):
    return stored_graph(tmp_path_factory.mktemp("directed") / "store", x, "directed")


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("norm", NORMS)
def test_messages_and_their_gradient_are_the_matrixs(graph, norm, backend, x):
    propagation = GraphPropagation(graph, at(), norm, backend=backend)
    matrix = torch.from_numpy(dense_matrix(graph, norm))
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


def test_a_graph_that_does_not_fit_is_refused_before_it_is_read(directed):
    with pytest.raises(DoesNotFitError, match="task graph"):
        GraphPropagation(directed, at(memory=1 * MIB))


def test_senseless_input_is_refused(directed):
    with pytest.raises(UsageError, match="'max'"):
        GraphPropagation(directed, at(), "max")
    with pytest.raises(UsageError, match="shape"):
        GraphPropagation(directed, at())(torch.ones(3, 3))
