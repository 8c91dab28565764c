"""Tests of ampx.models.vit_tiny and of the block it shares with gpt."""

import pytest
import torch

from ampx.models.transformer import SelfAttention
from ampx.models.vit_tiny import ViTTiny


def test_a_patch_size_that_does_not_divide_the_image_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"model\.patch_size=3: must divide the image size 8; change it, or data"
    ):
        ViTTiny(
            patch_size=3, width=8, depth=1, heads=2, dropout=0, in_channels=1, image_size=8, num_classes=2
        )


def test_a_number_of_heads_that_does_not_divide_the_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.width=10: must divide by model\.heads=4; change one"):
        SelfAttention(width=10, heads=4, dropout=0, is_causal=False)


def test_every_patch_reaches_the_logits() -> None:
    torch.manual_seed(0)
    model = ViTTiny(
        patch_size=2, width=8, depth=1, heads=2, dropout=0, in_channels=1, image_size=8, num_classes=2
    )
    x = torch.rand(1, 1, 8, 8, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert (x.grad.abs() > 0).all()


def test_attention_equals_its_definition() -> None:
    """softmax(QKᵀ/√D)V per head, written out in float64."""
    torch.manual_seed(0)
    attention = SelfAttention(width=8, heads=2, dropout=0, is_causal=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mixed: list[torch.Tensor] = []
    query, key, value = attention.qkv(x).split(8, dim=2)
    for head in (slice(0, 4), slice(4, 8)):
        scores = query[..., head] @ key[..., head].transpose(1, 2) / 2
        mixed.append(scores.masked_fill(~mask, -torch.inf).softmax(dim=2) @ value[..., head])
    torch.testing.assert_close(attention(x), attention.project(torch.cat(mixed, dim=2)))
