"""A small vision transformer (Dosovitskiy et al., arXiv 2010.11929). Axes: B batch, T patch, C width."""

from typing import final

import torch
from torch import Tensor, nn

from ampx.models.transformer import TransformerBlock


@final
class ViTTiny(nn.Module):
    """Images (B, in_channels, image_size, image_size) to logits, through the mean over patches."""

    def __init__(
        self,
        *,
        patch_size: int,
        width: int,
        depth: int,
        heads: int,
        dropout: float,
        in_channels: int,
        image_size: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(
                f"model.patch_size={patch_size}: must divide the image size {image_size}; "
                "change it, or data.image_size"
            )
        num_patches = (image_size // patch_size) ** 2
        self.patches = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
        self.position = nn.Parameter(torch.empty(num_patches, width).normal_(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(width=width, heads=heads, dropout=dropout, is_causal=False)
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x_BTC = self.patches(images).flatten(2).transpose(1, 2)
        x_BTC = self.blocks(self.dropout(x_BTC + self.position))
        return self.head(self.norm(x_BTC).mean(dim=1))
