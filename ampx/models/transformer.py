"""The pre-norm transformer block that `gpt` and `vit_tiny` are made of.

Axes: B batch, T position, H head, D features per head, C = H·D.
"""

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F


@final
class TransformerBlock(nn.Module):
    """Attention, then a two-layer network of four times the width, each on a normed copy of the stream."""

    def __init__(self, *, width: int, heads: int, dropout: float, is_causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width=width, heads=heads, dropout=dropout, is_causal=is_causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x_BTC = x + self.attention(self.norm1(x))
        return x_BTC + self.mlp(self.norm2(x_BTC))


@final
class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; a causal one sees no later position."""

    def __init__(self, *, width: int, heads: int, dropout: float, is_causal: bool) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"model.width={width}: must divide by model.heads={heads}; change one of them")
        self.heads = heads
        self.dropout = dropout
        self.is_causal = is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q_BHTD, k_BHTD, v_BHTD = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BHTD, v_BHTD, dropout_p=dropout, is_causal=self.is_causal
        )
        return F.dropout(self.project(mixed_BHTD.transpose(1, 2).flatten(2)), self.dropout, self.training)
