"""How float32 copies are filled from low-precision parameters, and stored into them after a step.

Storing unchanged copies leaves every bit as it was: a step that was skipped on the device is stored too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ampx.numerics.rounding import round_stochastically, split_compensated


class StoreRule(Protocol):
    """A rule for one list of low-precision parameters; `wide` are their copies."""

    keeps_copies: bool

    def fill(self, wide: Sequence[Tensor]) -> None: ...

    def store(self, wide: Sequence[Tensor]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Nearest:
    """Rounds to nearest. What that loses stays in the copies, so they must outlive the step."""

    keeps_copies = True

    def __init__(self, low: Sequence[Tensor]) -> None:
        self._low = list(low)

    def fill(self, wide: Sequence[Tensor]) -> None:
        _copy(wide, self._low)

    def store(self, wide: Sequence[Tensor]) -> None:
        _copy(self._low, wide)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Stochastic:
    """Rounds at random, so that small updates arrive on average. It draws from a generator of its own."""

    keeps_copies = False

    def __init__(self, low: Sequence[Tensor], seed: int) -> None:
        self._low = list(low)
        device = self._low[0].device if self._low else torch.device("cpu")
        self._generator = torch.Generator(device).manual_seed(seed)

    def fill(self, wide: Sequence[Tensor]) -> None:
        _copy(wide, self._low)

    def store(self, wide: Sequence[Tensor]) -> None:
        for low, copy in zip(self._low, wide, strict=True):
            low.copy_(round_stochastically(copy, self._generator))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(state["generator"])


class Kahan:
    """Keeps what rounding loses in a second bfloat16 tensor, and adds it back before the next step."""

    keeps_copies = False

    def __init__(self, low: Sequence[Tensor]) -> None:
        self._low = list(low)
        self._remainders = [torch.zeros_like(tensor) for tensor in low]

    def fill(self, wide: Sequence[Tensor]) -> None:
        if self._low:
            _copy(wide, self._low)
            torch._foreach_add_(list(wide), self._remainders)

    def store(self, wide: Sequence[Tensor]) -> None:
        for low, remainder, copy in zip(self._low, self._remainders, wide, strict=True):
            value, lost = split_compensated(copy)
            low.copy_(value)
            remainder.copy_(lost)

    def state_dict(self) -> dict[str, Any]:
        return {"remainders": self._remainders}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for remainder, saved in zip(self._remainders, state["remainders"], strict=True):
            remainder.copy_(saved)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))
