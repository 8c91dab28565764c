"""Tests of ampx.models.mlp."""

from torch import nn

from ampx.models.mlp import MLP


def test_hidden_sizes_give_the_layers_64_128_128_128_10() -> None:
    model = MLP(hidden=[128, 128, 128], in_features=64, num_classes=10)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    sizes = [(layer.in_features, layer.out_features) for layer in layers]
    assert sizes == [(64, 128), (128, 128), (128, 128), (128, 10)]


def test_no_hidden_size_gives_a_linear_classifier() -> None:
    assert sum(p.numel() for p in MLP(hidden=[], in_features=64, num_classes=10).parameters()) == 650
