"""What stands between the model's parameters and an optimizer: nothing, or float32 copies.

Copies of low-precision parameters collect gradients and are stepped in float32; a store rule rounds them
into the model. Masters outlive the step; other rules need their copies only until they are stored.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from ampx.config.optimizer import Rounding
from ampx.numerics.policy import PrecisionPolicy
from ampx.training.store_rules import Kahan, Nearest, Stochastic, StoreRule


class Masters(Protocol):
    """What one optimizer owns in place of the model's parameters."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In the order of the model's parameters, of which those in float32 are the same objects."""
        ...

    @property
    def copies(self) -> dict[nn.Parameter, nn.Parameter]:
        """The float32 copies that outlive a step, by the model's parameter."""
        ...

    def collect_gradients(self) -> None:
        """After every backward: add the model's gradients to the copies' in float32, and free them."""
        ...

    def store(self) -> None:
        """After every attempt: round the copies into the model. After a skipped one this changes no bit."""
        ...

    def drop_gradients(self) -> None:
        """Free the gradients of the copies."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the model."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, with the model already loaded."""
        ...


def build_masters(
    parameters: Iterable[nn.Parameter], policy: PrecisionPolicy, *, rounding: Rounding, seed: int
) -> Masters:
    """Masters for one optimizer's parameters. All ranks pass one `seed`, or their replicas drift apart."""
    parameters = list(parameters)
    if rounding == "nearest" and policy.masters == "none":
        return NoMasters(parameters)
    low = [p for p in parameters if p.dtype in (torch.bfloat16, torch.float16)]
    return FloatCopies(parameters, low, _build_rule(low, rounding, seed))


def _build_rule(low: list[nn.Parameter], rounding: Rounding, seed: int) -> StoreRule:
    if rounding == "stochastic":
        return Stochastic(low, seed)
    return Kahan(low) if rounding == "kahan" else Nearest(low)


class NoMasters:
    """The optimizer owns the model's own parameters."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.copies: dict[nn.Parameter, nn.Parameter] = {}

    def collect_gradients(self) -> None: ...

    def store(self) -> None: ...

    def drop_gradients(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class FloatCopies:
    """Float32 copies of `low`, the low-precision ones among `parameters`."""

    def __init__(self, parameters: list[nn.Parameter], low: list[nn.Parameter], rule: StoreRule) -> None:
        self._low = low
        self._wide = [nn.Parameter(torch.empty_like(p, dtype=torch.float32)) for p in low]
        self._rule = rule
        wide_of = dict(zip(low, self._wide, strict=True))
        self.parameters = [wide_of.get(p, p) for p in parameters]
        self.copies = wide_of if rule.keeps_copies else {}
        self._fill()
        self._release()

    def collect_gradients(self) -> None:
        if not self._is_filled:
            self._fill()
        for low, wide in zip(self._low, self._wide, strict=True):
            if low.grad is not None:
                grad = low.grad.float()  # the optimizer's own precision
                wide.grad = grad if wide.grad is None else wide.grad.add_(grad)
                low.grad = None

    @torch.no_grad()
    def store(self) -> None:
        if self._is_filled:
            self._rule.store(self._wide)
            self._release()

    def drop_gradients(self) -> None:
        for wide in self._wide:
            wide.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "kind": type(self._rule).__name__,
            "copies": [wide.detach() for wide in self.copies.values()],
            "rule": self._rule.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Saved under another rule (a fork changed it), the copies start anew from the loaded model."""
        if state.get("kind") != type(self._rule).__name__:
            self._fill()
            self._release()
            return
        for wide, saved in zip(self.copies.values(), state["copies"], strict=True):
            wide.copy_(saved)
        self._rule.load_state_dict(state["rule"])
        self._release()

    @torch.no_grad()
    def _fill(self) -> None:
        for wide in self._wide:
            wide.untyped_storage().resize_(wide.numel() * wide.element_size())
        self._rule.fill(self._wide)
        self._is_filled = True

    def _release(self) -> None:
        """Free the memory of copies that need not outlive a step; the tensors keep their shapes."""
        if not self._rule.keeps_copies:
            for wide in self._wide:
                wide.untyped_storage().resize_(0)
            self._is_filled = False
