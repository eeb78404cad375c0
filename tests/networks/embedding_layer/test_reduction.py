"""A wide embedding layer reduced to few outputs: principal components, and a network that goes on working."""

import copy

import torch
from sklearn.decomposition import PCA

from nngk.networks import EmbeddingNetwork, create_network
from nngk.networks.embedding_layer.reduction import reduce_embedding


def test_the_outputs_are_the_principal_components_of_the_wide_ones():
    torch.manual_seed(0)
    network = create_network("small", dim=12, weights="random", normalise=False)
    features = torch.randn(200, 128) * torch.linspace(0.1, 3, 128)
    wide = network.head.linear(features).detach()
    reduce_embedding(network, features, 5)
    narrow = network.head.linear(features).detach()
    expected = torch.from_numpy(PCA(5).fit_transform(wide.double().numpy()))
    torch.testing.assert_close(narrow.abs().double(), expected.abs(), rtol=1e-3, atol=1e-3)  # up to each one's sign


def test_whitened_components_have_the_spread_of_the_first():
    features = torch.randn(200, 128) * torch.linspace(0.1, 3, 128)
    spreads = {}
    for whiten in (0.0, 0.5, 1.0):
        torch.manual_seed(0)
        network = create_network("small", dim=12, weights="random", normalise=False)
        reduce_embedding(network, features, 5, whiten)
        spreads[whiten] = network.head.linear(features).detach().std(0)
    torch.testing.assert_close(spreads[1.0], spreads[0.0][:1].expand(5), rtol=1e-3, atol=0)
    torch.testing.assert_close(spreads[0.5], (spreads[0.0] * spreads[1.0]).sqrt(), rtol=1e-3, atol=0)


def test_a_component_that_is_not_there_is_not_blown_up():
    network = create_network("small", dim=12, weights="random", normalise=False)
    wide = copy.deepcopy(network.head.linear)
    features = torch.randn(200, 2) @ torch.randn(2, 128)  # two directions, and no third
    reduce_embedding(network, features, 5, 1.0)
    out = network.head.linear(features).detach()
    assert out.isfinite().all() and (out[:, 2:].std(0) < 1e-3 * out[:, 0].std()).all()
    new = torch.randn(50, 128)  # which do have a part in the others
    assert network.head.linear(new)[:, 2:].abs().max() <= 1.01 * (wide(new) - wide(features).mean(0)).norm(dim=1).max()


def test_an_embedding_without_any_spread_stays_finite():
    network = create_network("small", dim=12, weights="random", normalise=False)
    features = torch.ones(20, 128)
    reduce_embedding(network, features, 5, 0.5)
    assert network.head.linear(features).isfinite().all()


def test_as_many_outputs_keep_all_distances():
    network = create_network("small", dim=6, weights="random", normalise=False)
    features = torch.randn(40, 128)
    before = torch.cdist(network.head.linear(features), network.head.linear(features))
    reduce_embedding(network, features, 6)
    after = torch.cdist(network.head.linear(features), network.head.linear(features))
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-3)


def test_the_reduced_network_can_be_built_again():
    network = create_network("small", dim=12, weights="random")
    reduce_embedding(network, torch.randn(40, 128), 5)
    again = EmbeddingNetwork.from_config(network.config)
    again.load_state_dict(network.state_dict())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(again.eval()(x), network.eval()(x))
