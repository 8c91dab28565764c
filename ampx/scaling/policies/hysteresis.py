"""Megatron's and DeepSpeed's rule: several overflows are forgiven before the scale backs off."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from ampx.scaling.policies.policy import (
    ScalePolicy,
    bounded,
    check_backoff,
    check_count,
    check_growth,
    float32,
    grow,
    int32,
)


class HysteresisSettings(NamedTuple):
    growth_factor: Tensor
    backoff_factor: Tensor
    growth_interval: Tensor
    hysteresis: Tensor
    consecutive: Tensor
    min_scale: Tensor
    max_scale: Tensor


class HysteresisState(NamedTuple):
    scale: Tensor
    growth_tracker: Tensor
    hysteresis_tracker: Tensor


@dataclass(frozen=True)
class Hysteresis(ScalePolicy):
    """Back off from the `hysteresis`-th overflow on; `hysteresis=1` is the dynamic rule.

    The forgiven overflows are granted anew when the scale grows (Megatron-LM,
    megatron/core/optimizer/grad_scaler.py, DynamicGradScaler), or with `consecutive` after every clean update
    (DeepSpeed, deepspeed/runtime/fp16/loss_scaler.py, `consecutive_hysteresis`).
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 1000
    hysteresis: int = 2
    consecutive: bool = False

    name: ClassVar[str] = "hysteresis"
    settings_type = HysteresisSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        check_growth(self.growth_factor, self.growth_interval)
        check_backoff(self.backoff_factor)
        check_count("hysteresis", self.hysteresis, "1 backs off at the first overflow, 2 forgives one")

    @override
    def init_state(self, init_scale: float) -> HysteresisState:
        return HysteresisState(float32(init_scale), int32(0), torch.tensor(self.hysteresis))

    @staticmethod
    @override
    def advance(
        settings: HysteresisSettings, state: HysteresisState, found_inf: Tensor, amax: Tensor | None = None
    ) -> HysteresisState:
        overflowed = found_inf != 0
        clean_updates = torch.where(overflowed, 0, state.growth_tracker + 1)
        is_due = clean_updates >= settings.growth_interval
        forgiven = torch.where(is_due | settings.consecutive, settings.hysteresis, state.hysteresis_tracker)
        left = torch.where(overflowed, state.hysteresis_tracker - 1, forgiven).clamp(min=0)
        kept = torch.where(is_due, grow(state.scale, settings.growth_factor), state.scale)
        scale = torch.where(overflowed & (left == 0), state.scale.double() * settings.backoff_factor, kept)
        return HysteresisState(bounded(scale, settings), torch.where(is_due, 0, clean_updates), left)

    @override
    def readmit(self, state: HysteresisState) -> HysteresisState:
        return (
            super()
            .readmit(state)
            ._replace(hysteresis_tracker=state.hysteresis_tracker.clamp(max=self.hysteresis))
        )
