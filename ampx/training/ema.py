"""The exponential moving average of the weights, in float32 whatever the model is stored in."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ampx.training.masters import Masters


class Ema(Protocol):
    """Follows the weights on applied steps only."""

    def update(self) -> None:
        """Move the average after an applied step."""
        ...

    def update_tensor(self, applied: Tensor) -> None:
        """The same where `applied`, one element on the device, is 1; where it is 0, nothing changes."""
        ...

    def swapped(self, model: nn.Module) -> AbstractContextManager[None]:
        """The model holds the average inside, and what it held before afterwards."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def build_ema(model: nn.Module, decay: float | None, masters: Sequence[Masters]) -> Ema:
    """An average that starts at the present weights, taken from the masters where there are any."""
    return NoEma() if decay is None else AveragedWeights(model, decay, masters)


class NoEma:
    """No average: evaluation uses the model as it is."""

    def update(self) -> None: ...

    def update_tensor(self, applied: Tensor) -> None: ...

    def swapped(self, model: nn.Module) -> AbstractContextManager[None]:
        del model
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class AveragedWeights:
    """Float32 averages of the trainable parameters. Buffers are not averaged: the model's own are used."""

    def __init__(self, model: nn.Module, decay: float, masters: Sequence[Masters]) -> None:
        copies = {low: wide for each in masters for low, wide in each.copies.items()}
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._sources = [copies.get(p, p) for p in trainable.values()]
        self._averages = {
            name: source.detach().float().clone()
            for name, source in zip(trainable, self._sources, strict=True)
        }
        self._weight = torch.tensor(1.0 - decay, device=self._sources[0].device)  # float32 on host and device

    def update(self) -> None:
        self._lerp(self._weight)

    def update_tensor(self, applied: Tensor) -> None:
        self._lerp(self._weight * applied.reshape(()))

    @torch.no_grad()
    def _lerp(self, weight: Tensor) -> None:
        averages = list(self._averages.values())
        sources = [
            source.float() for source in self._sources
        ]  # bfloat16 would never move at a decay of 0.999
        torch._foreach_lerp_(averages, sources, [weight] * len(averages))

    @contextmanager
    def swapped(self, model: nn.Module) -> Generator[None]:
        parameters = dict(model.named_parameters())
        targets = [parameters[name] for name in self._averages]
        own = [p.detach().clone() for p in targets]
        _copy(targets, list(self._averages.values()))
        try:
            yield
        finally:
            _copy(targets, own)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Saved without an average (a fork switched it on), it starts anew from the present weights."""
        saved = state.get("averages") or dict(zip(self._averages, self._sources, strict=True))
        _copy(list(self._averages.values()), [saved[name] for name in self._averages])


@torch.no_grad()
def _copy(targets: list[Any], sources: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)
