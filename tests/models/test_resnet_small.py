"""Tests of ampx.models.resnet_small."""

import torch

from ampx.models.resnet_small import ResidualBlock, ResNetSmall


def test_each_stage_halves_the_size_and_doubles_the_width() -> None:
    model = ResNetSmall(width=4, blocks=[1, 2, 1], in_channels=1, num_classes=10)
    shapes: list[tuple[int, ...]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert shapes == [(4, 8, 8), (8, 4, 4), (8, 4, 4), (16, 2, 2)]


def test_a_block_without_convolutions_passes_its_input_on() -> None:
    """The shortcut is there: with zero weights a block is the identity on what is positive."""
    block = ResidualBlock(4, 4, stride=1)
    for convolution in (block.conv1, block.conv2):
        torch.nn.init.zeros_(convolution.weight)
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(x), x)
