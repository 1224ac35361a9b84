"""The same tensors as an MLP and as a graph network; weights on disk come back as they were or not at all."""

from __future__ import annotations

import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy import sparse

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.learn import sparse_linear
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.store.source import CsrBlock


def weights_of(*widths, bias=True, seed=0):
    return SharedWeights.create(widths[0], widths[1:-1], widths[-1], bias=bias, seed=seed)


def module_of(weights):
    """torch's own MLP with copies of the weights."""
    layers = []
    for weight, bias in weights.layers:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        linear.load_state_dict({"weight": weight.detach(), **({} if bias is None else {"bias": bias.detach()})})
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def csr_of(dense):
    matrix = sparse.csr_matrix(dense)
    matrix.sort_indices()
    return CsrBlock(matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data.astype(np.float32))


def bag_of_words(num_rows, num_features, seed=0):
    random = np.random.default_rng(seed)
    dense = random.random((num_rows, num_features), np.float32)
    return dense * (random.random(dense.shape) < 0.1)


# --- the MLP


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(7, 3), (7, 16, 3), (5, 16, 8, 4)])
def test_the_mlp_is_torchs(widths, bias):
    weights = weights_of(*widths, bias=bias)
    x = torch.randn(20, widths[0])
    torch.testing.assert_close(weights.mlp(x), module_of(weights)(x), rtol=0, atol=0)
    assert weights.widths == widths
    assert (weights.num_features, weights.num_classes) == (widths[0], widths[-1])
    assert len(weights.parameters()) == len(weights.layers) * (2 if bias else 1)


@pytest.mark.parametrize("columns", [slice(1, 3), torch.tensor([0, 3])])
def test_only_the_wanted_columns_of_the_head_are_computed(columns):
    weights = weights_of(6, 8, 5)
    x = torch.randn(9, 6)
    some, all_of_them = weights.mlp(x, columns=columns), weights.mlp(x)[:, columns]
    torch.testing.assert_close(some, all_of_them, rtol=1e-6, atol=1e-6)
    some.square().sum().backward()
    grads = [tensor.grad.clone() for tensor in weights.parameters()]
    for tensor in weights.parameters():
        tensor.grad = None
    all_of_them.square().sum().backward()
    for one, other in zip(grads, weights.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_sparse_rows_give_the_outputs_and_gradients_of_dense_ones():
    dense = bag_of_words(50, 70)
    dense[7] = 0
    found = []
    for x in (torch.from_numpy(dense), csr_of(dense)):
        weights = weights_of(70, 40, 6)
        weights.mlp(x).square().sum().backward()
        found.append([weights.mlp(x).detach(), *(tensor.grad for tensor in weights.parameters())])
    for by_dense, by_sparse in zip(*found, strict=True):
        torch.testing.assert_close(by_sparse, by_dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [3, 16, 40])
def test_sparse_rows_give_the_same_bits_for_any_number_of_threads(width, monkeypatch):
    monkeypatch.setattr(sparse_linear, "SERIAL_PRODUCTS", 0)
    rows = csr_of(bag_of_words(30, 20))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            weights = weights_of(20, width, 2)
            weights.mlp(rows).square().sum().backward()
            found.append(weights.layers[0][0].grad.numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(set(found)) == 1


def test_dropout_is_drawn_from_the_generator_and_keeps_the_mean():
    weights = weights_of(4, 2000, 1)
    x = torch.randn(1, 4).abs()
    drawn = [weights.mlp(x, dropout=0.5, generator=torch.Generator().manual_seed(s)).item() for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    many = [weights.mlp(x, dropout=0.5, generator=torch.Generator().manual_seed(s)).item() for s in range(300)]
    assert abs(np.mean(many) - weights.mlp(x).item()) < 4 * np.std(many) / 300**0.5


# --- the graph network


def test_one_list_of_tensors_serves_both_networks():
    weights = weights_of(4, 8, 3)
    x = torch.randn(6, 4)
    torch.testing.assert_close(weights.gcn(x, lambda h: h), weights.mlp(x))
    with torch.no_grad():
        weights.layers[0][0].mul_(2)
    torch.testing.assert_close(weights.gcn(x, lambda h: h), weights.mlp(x))
    weights.gcn(x, lambda h: h).sum().backward()
    assert all(tensor.grad is not None for tensor in weights.parameters())


@pytest.mark.parametrize("bias_place", ["inside", "outside"])
@pytest.mark.parametrize("widths", [(4, 9, 3), (9, 4, 6), (5, 5)])
def test_messages_are_as_the_formulas_say_whatever_is_narrower(widths, bias_place):
    weights = weights_of(*widths)
    matrix, x = torch.rand(7, 7), torch.randn(7, widths[0])
    wanted = x
    for index, (weight, bias) in enumerate(weights.layers):
        wanted = wanted.relu() if index else wanted
        inside, outside = (bias, 0) if bias_place == "inside" else (0, bias)
        wanted = matrix @ (wanted @ weight.T + inside) + outside
    sent_widths = []

    def propagate(h):
        sent_widths.append(h.shape[1])
        return matrix @ h

    found = weights.gcn(x, propagate, bias_place=bias_place)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert [width for width in sent_widths if width > 1] == [min(pair) for pair in pairwise(widths)]


def test_sgc_smooths_first_and_is_then_the_mlp():
    weights = weights_of(4, 6, 3)
    matrix, x = torch.rand(5, 5), torch.randn(5, 4)
    found = weights.gcn(x, lambda h: matrix @ h, encoder="sgc")
    torch.testing.assert_close(found, weights.mlp(matrix @ (matrix @ x)))


@pytest.mark.parametrize("encoder", ["gcn", "sgc"])
def test_sparse_features_may_be_a_graphs_too(encoder):
    weights = weights_of(20, 6, 3)
    dense, matrix = bag_of_words(8, 20), torch.rand(8, 8)
    by_sparse = weights.gcn(csr_of(dense), lambda h: matrix @ h, encoder=encoder)
    by_dense = weights.gcn(torch.from_numpy(dense), lambda h: matrix @ h, encoder=encoder)
    torch.testing.assert_close(by_sparse, by_dense, rtol=1e-4, atol=1e-5)


def test_an_unknown_network_is_refused():
    with pytest.raises(UsageError, match="gat"):
        weights_of(2, 2).gcn(torch.ones(1, 2), lambda h: h, encoder="gat")
    with pytest.raises(UsageError, match="between"):
        weights_of(2, 2).gcn(torch.ones(1, 2), lambda h: h, bias_place="between")


# --- creation


def test_torch_init_is_what_a_linear_layer_draws():
    weights = SharedWeights.create(10, [6], 3, init="torch", seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [torch.nn.Linear(10, 6), torch.nn.Linear(6, 3)]
    for (weight, bias), layer in zip(weights.layers, layers, strict=True):
        torch.testing.assert_close(weight, layer.weight)
        torch.testing.assert_close(bias, layer.bias)


def test_kaiming_init_is_normal_with_deviation_one_over_root_fan_in():
    weight, bias = SharedWeights.create(400, [], 300, init="kaiming", seed=1).layers[0]
    assert abs(weight.std().item() * 20 - 1) < 0.02
    assert abs(weight.mean().item()) < 0.001
    assert weight.abs().max().item() > 3 / 20 > bias.abs().max().item() * 2


def test_kaiming_init_is_what_the_public_code_draws_for_the_seed():
    weights = SharedWeights.create(10, [6], 3, init="kaiming", seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [torch.nn.Linear(10, 6), torch.nn.Linear(6, 3)]
        for layer in layers:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="sigmoid")
    for (weight, bias), layer in zip(weights.layers, layers, strict=True):
        assert torch.equal(weight, layer.weight)
        assert torch.equal(bias, layer.bias)


def test_a_seed_gives_the_same_weights_whatever_was_drawn_before():
    first = weights_of(3, 4, 2, seed=3)
    torch.rand(100)
    again, other = weights_of(3, 4, 2, seed=3), weights_of(3, 4, 2, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.layers[0][0], other.layers[0][0])


@pytest.mark.parametrize("layers", [[], [(torch.ones(3, 2), torch.ones(2))], [(torch.ones(3, 2), None)] * 2])
def test_layers_that_do_not_fit_are_refused(layers):
    with pytest.raises(UsageError):
        SharedWeights(layers)


def test_an_impossible_shape_or_init_is_refused():
    with pytest.raises(UsageError, match="width"):
        SharedWeights.create(3, [0], 2)
    with pytest.raises(UsageError, match="xavier"):
        SharedWeights.create(3, [], 2, init="xavier")


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("hidden", [[], [4]])
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_grows_by_rows_of_zeros_that_lie_in_memory_as_the_others(hidden, bias, by_columns):
    weights = SharedWeights.create(7, hidden, 3, bias=bias, by_columns=by_columns)
    before = [tensor.detach().clone() for tensor in weights.parameters()]
    first = weights.layers[0][0]
    weights.grow(2)
    assert weights.widths == (7, *hidden, 5)
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in weights.parameters())
    for old, now in zip(before, weights.parameters(), strict=True):
        assert torch.equal(now[: len(old)], old)
        assert not now[len(old) :].any()
    assert weights.layers[0][0].stride() == ((1, 4 if hidden else 5) if by_columns else (7, 1))
    assert (weights.layers[0][0] is first) is bool(hidden)


def test_weights_take_over_those_of_a_narrower_head_and_leave_zeros_for_the_rest():
    narrow, wide = SharedWeights.create(7, [4], 3, seed=1), SharedWeights.create(7, [4], 5, seed=2, by_columns=True)
    tensors = wide.parameters()
    wide.take(narrow.parameters())
    assert all(one is other for one, other in zip(wide.parameters(), tensors, strict=True))
    assert torch.equal(wide.layers[0][0], narrow.layers[0][0])
    assert torch.equal(wide.layers[1][0][:3], narrow.layers[1][0])
    assert not wide.layers[1][0][3:].any()
    assert not wide.layers[1][1][3:].any()


def test_a_copy_has_tensors_of_its_own_and_the_same_device_needs_none():
    weights = weights_of(3, 2)
    copy = weights.copy()
    with torch.no_grad():
        copy.layers[0][0].zero_()
    assert weights.layers[0][0].abs().sum() > 0
    assert weights.to("cpu") is weights
    assert np.shares_memory(weights.arrays()[0][0], weights.layers[0][0].detach().numpy())


# --- on disk


@pytest.mark.parametrize("bias", [True, False])
def test_weights_come_back_from_disk_bit_by_bit_and_can_be_trained_on(tmp_path, bias):
    weights = weights_of(5, 4, 3, bias=bias)
    weights.save(tmp_path / "w.safetensors")
    weights.save(tmp_path / "w.safetensors")
    loaded = SharedWeights.load(tmp_path / "w.safetensors", widths=(5, 4, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    for one, other in zip(weights.parameters(), loaded.parameters(), strict=True):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    with torch.no_grad():
        loaded.layers[0][0].add_(1)
    loaded.mlp(torch.ones(1, 5)).sum().backward()


def test_weights_of_other_widths_are_refused_with_both(tmp_path):
    weights_of(5, 4, 3).save(tmp_path / "w.safetensors")
    with pytest.raises(InvalidInputError, match=r"\[5, 4, 3\]") as caught:
        SharedWeights.load(tmp_path / "w.safetensors", widths=[5, 4, 7])
    assert "[5, 4, 7]" in str(caught.value)


def test_a_pickle_is_never_opened(tmp_path):
    torch.save({"weight.0": torch.ones(2, 2)}, tmp_path / "w.pt")
    assert zipfile.is_zipfile(tmp_path / "w.pt")
    with pytest.raises(InvalidInputError, match="pickle"):
        SharedWeights.load(tmp_path / "w.pt")


def test_a_file_that_is_missing_cut_or_changed_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(InvalidInputError, match="cannot use this path"):
        SharedWeights.load(path)
    weights_of(5, 4, 3).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    with pytest.raises(InvalidInputError, match="safetensors"):
        SharedWeights.load(path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InvalidInputError, match="damaged"):
        SharedWeights.load(path)


def test_tensors_of_somebody_else_are_refused(tmp_path):
    save_file({"weight.0": np.ones((2, 2), np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidInputError, match="another program"):
        SharedWeights.load(tmp_path / "other.safetensors")
