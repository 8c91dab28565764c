"""PyTorch's rule, the default: back off at once, grow after an interval without overflow."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from ampx.scaling.policies.policy import (
    ScalePolicy,
    bounded,
    check_backoff,
    check_growth,
    float32,
    grow,
    int32,
)


class DynamicSettings(NamedTuple):
    growth_factor: Tensor
    backoff_factor: Tensor
    growth_interval: Tensor
    min_scale: Tensor
    max_scale: Tensor


class DynamicState(NamedTuple):
    scale: Tensor
    growth_tracker: Tensor


@dataclass(frozen=True)
class Dynamic(ScalePolicy):
    """The rule of `torch.amp.GradScaler`, bit for bit, held within [min_scale, max_scale].

    Source: `_amp_update_scale_` in PyTorch's aten/src/ATen/native/cuda/AmpKernels.cu and its CPU twin.
    The "conservative" variant of the AMP guides is `Dynamic(1.2, 0.8, 500)` from a scale of 262144.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    name: ClassVar[str] = "dynamic"
    settings_type = DynamicSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        check_growth(self.growth_factor, self.growth_interval)
        check_backoff(self.backoff_factor)

    @override
    def init_state(self, init_scale: float) -> DynamicState:
        return DynamicState(scale=float32(init_scale), growth_tracker=int32(0))

    @staticmethod
    @override
    def advance(
        settings: DynamicSettings, state: DynamicState, found_inf: Tensor, amax: Tensor | None = None
    ) -> DynamicState:
        overflowed = found_inf != 0
        clean_updates = state.growth_tracker + 1
        is_due = clean_updates >= settings.growth_interval
        kept = torch.where(is_due, grow(state.scale, settings.growth_factor), state.scale)
        scale = torch.where(overflowed, state.scale.double() * settings.backoff_factor, kept)
        return DynamicState(bounded(scale, settings), torch.where(overflowed | is_due, 0, clean_updates))

    @override
    def advance_(
        self, settings: DynamicSettings, state: DynamicState, found_inf: Tensor, amax: Tensor | None
    ) -> DynamicState:
        # torch's kernel takes 1 µs where the tensor function takes 40
        torch._amp_update_scale_(
            state.scale,
            state.growth_tracker,
            found_inf,
            self.growth_factor,
            self.backoff_factor,
            self.growth_interval,
        )
        if self.min_scale > 0.0 or self.max_scale < math.inf:
            self.clamp_(state.scale)
        return state

    @override
    def readmit(self, state: DynamicState) -> DynamicState:
        # the kernel grows when the count *equals* the interval: a larger count would never grow again
        tracker = state.growth_tracker.clamp(max=self.growth_interval - 1)
        return super().readmit(state)._replace(growth_tracker=tracker)
