"""The precision policy: which dtypes a trial stores and computes in, and what runs under autocast.

It knows one forward at a time. How the model's tensors are stored is `storage`'s, which modules differ is
`islands`', what the optimizer sees is `training.masters`'.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ampx.config.dtype import DtypeSettings, MastersChoice, MatmulPrecision, Scope, parse_island
from ampx.numerics.baseline import Baseline, set_baseline
from ampx.numerics.casts import cast_floating

Span = Callable[[str], AbstractContextManager[Any]]

_NOTHING = nullcontext()


class ForwardAndLoss(Protocol):
    """What the policy needs of a task's phase."""

    @property
    def forward(self) -> Callable[[], Any]: ...
    @property
    def loss(self) -> Callable[[Any], tuple[Tensor, dict[str, Tensor]]]: ...


def _no_span(_name: str) -> AbstractContextManager[None]:
    return _NOTHING


@dataclass(frozen=True)
class PrecisionPolicy:
    """Dtypes that are None leave what they would govern as it is."""

    device_type: str
    compute_dtype: torch.dtype
    param_dtype: torch.dtype
    buffer_dtype: torch.dtype | None
    output_dtype: torch.dtype | None
    scope: Scope
    islands: tuple[tuple[str, torch.dtype], ...]
    cache_weights: bool
    masters: MastersChoice
    matmul_precision: MatmulPrecision

    @classmethod
    def from_settings(cls, settings: DtypeSettings, device_type: str) -> "PrecisionPolicy":
        """The policy of validated settings on one kind of device."""
        return cls(
            device_type=device_type,
            compute_dtype=_dtype(settings.compute_dtype),
            param_dtype=_dtype(settings.param_dtype),
            buffer_dtype=settings.buffer_dtype and _dtype(settings.buffer_dtype),
            output_dtype=settings.output_dtype and _dtype(settings.output_dtype),
            scope=settings.scope,
            islands=tuple((pattern, _dtype(name)) for pattern, name in map(parse_island, settings.islands)),
            cache_weights=settings.cache_weights,
            masters=settings.masters,
            matmul_precision=settings.matmul_precision,
        )

    @property
    def is_mixed(self) -> bool:
        """Parameters in float32, computation under autocast."""
        return self.param_dtype != self.compute_dtype

    @property
    def is_pure(self) -> bool:
        """Parameters in the low dtype itself, and no autocast."""
        return self.param_dtype != torch.float32

    def set_baseline(self) -> Baseline:
        """Set and measure the process's float32 precision; ValueError where the device has no such."""
        return set_baseline(self.matmul_precision, self.device_type)

    def run(self, phase: ForwardAndLoss, span: Span = _no_span) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of one forward, in one autocast region that reaches as far as `scope` says."""
        with self._autocast():
            with span("forward"):
                outputs = self._cast_outputs(phase.forward())
            if self.scope == "forward_loss":
                with span("loss"):
                    return phase.loss(outputs)
        with span("loss"):
            return phase.loss(outputs)

    def step_region(self) -> AbstractContextManager[Any]:
        """Around a whole step, from the first forward to the update: autocast under `scope=step` alone."""
        return self._autocast() if self.scope == "step" else _NOTHING

    def backward_region(self) -> AbstractContextManager[Any]:
        """Around backward: outside autocast, even where a task left a region open across its `yield`."""
        if self.scope != "step" and torch.is_autocast_enabled(self.device_type):
            return torch.autocast(self.device_type, enabled=False)
        return _NOTHING

    def evaluation_region(self) -> AbstractContextManager[Any]:
        """Around an evaluation, whatever `scope` says of training."""
        return self._autocast()

    def cast_batch(self, batch: Any) -> Any:
        """The batch as a pure policy's model takes it; autocast and float32 take it as it is."""
        return cast_floating(batch, self.compute_dtype) if self.is_pure else batch

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self.is_mixed:
            return _NOTHING
        # a fresh one each time: an instance keeps the state to return to, so it cannot be entered twice
        return torch.autocast(self.device_type, self.compute_dtype, cache_enabled=self.cache_weights)

    def _cast_outputs(self, outputs: Any) -> Any:
        dtype = torch.float32 if self.scope == "forward_float" else self.output_dtype
        return outputs if dtype is None else cast_floating(outputs, dtype)


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)
