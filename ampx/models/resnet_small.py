"""A small residual network for images of 8×8 to 64×64 pixels (He et al., arXiv 1512.03385)."""

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which becomes a 1×1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.norm2(self.conv2(residual)))


@final
class ResNetSmall(nn.Module):
    """`blocks` has the number of blocks per stage; each further stage doubles width and halves size."""

    def __init__(self, *, width: int, blocks: Sequence[int], in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential()
        channels = width
        for stage, num_blocks in enumerate(blocks):
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                self.blocks.append(ResidualBlock(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(self.stem(x))
        return self.head(features.mean(dim=(2, 3)))
