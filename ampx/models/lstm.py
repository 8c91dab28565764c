"""A recurrent language model. Axes: B batch, T position, C width, V vocabulary."""

from typing import final

from torch import Tensor, nn


@final
class LSTM(nn.Module):
    """Tokens int64 (B, T) to next-token logits (B, T, V)."""

    def __init__(self, *, width: int, depth: int, dropout: float, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        between_layers = dropout if depth > 1 else 0.0  # nn.LSTM warns of a dropout that has no place
        self.recurrent = nn.LSTM(width, width, depth, batch_first=True, dropout=between_layers)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x_BTC, _ = self.recurrent(self.dropout(self.embedding(tokens)))
        return self.head(self.dropout(x_BTC))
