"""A multilayer perceptron over flattened samples."""

from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn


@final
class MLP(nn.Module):
    """Linear layers with ReLU between them; `hidden=[128, 128, 128]` over digits is 64-128-128-128-10."""

    def __init__(self, *, hidden: Sequence[int], in_features: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for fan_in, fan_out in pairwise([in_features, *hidden]):
            self.layers.extend([nn.Linear(fan_in, fan_out), nn.ReLU()])
        self.head = nn.Linear(hidden[-1] if hidden else in_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.flatten(1)))
