"""From float32 to bfloat16 without losing small updates: at random, or with the remainder kept."""

import torch
from torch import Tensor

_LOW_BITS = 1 << 16  # float32 is bfloat16 with 16 more mantissa bits


def round_stochastically(x: Tensor, generator: torch.Generator) -> Tensor:
    """float32 `x` as one of its two bfloat16 neighbours, the nearer the likelier: the expectation is `x`.

    Representable values, inf and NaN stay. Beyond the largest bfloat16 the nearest is taken, as in a cast.
    """
    noise = _uniform_int16(x, generator)
    bits = x.view(torch.int32).add(noise).add_(_LOW_BITS // 2)  # noise is centred on zero
    rounded = bits.bitwise_and_(-_LOW_BITS).view(torch.float32)  # truncation after noise in [0, one step)
    return torch.where(x.abs() < torch.finfo(torch.bfloat16).max, rounded, x).bfloat16()


def _uniform_int16(like: Tensor, generator: torch.Generator) -> Tensor:
    """All int16 values equally likely: four from each 64-bit draw, which on a CPU is five times faster."""
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
    draws.random_(-(2**63), None, generator=generator)
    return draws.view(torch.int16)[: like.numel()].view(like.shape)


def split_compensated(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two bfloat16 tensors whose sum is float32 `x` to about 16 bits: the rounded value and its remainder.

    Splitting the sum of a split gives the same bits again.
    """
    value, remainder = _split(x)
    return _split(value.float() + remainder.float())  # a remainder of half a step can round the other way


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    value = x.bfloat16()
    remainder = (x - value.float()).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # nothing remains of inf
    return value, remainder.bfloat16()
