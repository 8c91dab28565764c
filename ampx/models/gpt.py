"""A GPT-2-like language model (Radford et al., 2019). Axes: B batch, T position, C width, V vocabulary."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.models.transformer import TransformerBlock


@final
class GPT(nn.Module):
    """Tokens int64 (B, T ≤ context) to next-token logits (B, T, V)."""

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        heads: int,
        dropout: float,
        tie_weights: bool,
        vocab_size: int,
        context: int,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(width=width, heads=heads, dropout=dropout, is_causal=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        # Tied, the head has no parameters of its own: a state dict then holds the shared weight once.
        self.head = None if tie_weights else nn.Linear(width, vocab_size, bias=False)
        self._initialize(depth)

    def forward(self, tokens: Tensor) -> Tensor:
        positions_T = torch.arange(tokens.shape[1], device=tokens.device)
        x_BTC = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions_T))
        for block in self.blocks:
            x_BTC = block(x_BTC)
        x_BTC = self.norm(x_BTC)
        return F.linear(x_BTC, self.token_embedding.weight) if self.head is None else self.head(x_BTC)

    def _initialize(self, depth: int) -> None:
        # GPT-2's rule: what is added to the stream starts smaller, the more often something is added.
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=0.02 / (2 * depth) ** 0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
