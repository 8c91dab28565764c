"""Measures how many low-precision parameters a step leaves exactly as they were.

bfloat16 keeps 8 significant bits, so an update below 1/512 of the weight rounds away.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Stagnation:
    """Compares parameters stored in a low dtype before and after one step; others cost nothing."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.dtype in (torch.bfloat16, torch.float16)]
        self._before: list[Tensor] | None = None

    def before(self) -> None:
        """Copy the parameters."""
        if self._parameters:
            self._before = [p.detach().clone() for p in self._parameters]

    def share(self) -> float | None:
        """Share of entries equal to their copies; None where nothing was copied. Waits for the device."""
        if self._before is None:
            return None
        before, self._before = self._before, None
        unchanged = sum(
            (old == new).sum(dtype=torch.float64) for old, new in zip(before, self._parameters, strict=True)
        )
        return float(unchanged) / sum(p.numel() for p in self._parameters)
