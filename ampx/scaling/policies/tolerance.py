"""fairseq's rule: a share of overflowing updates is tolerated before the scale backs off."""

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


class ToleranceSettings(NamedTuple):
    growth_factor: Tensor
    backoff_factor: Tensor
    growth_interval: Tensor
    tolerance: Tensor
    min_scale: Tensor
    max_scale: Tensor


class ToleranceState(NamedTuple):
    scale: Tensor
    growth_tracker: Tensor
    updates_since_rescale: Tensor
    tolerated_overflows: Tensor


@dataclass(frozen=True)
class Tolerance(ScalePolicy):
    """Back off once overflows reach the share `tolerance` of the updates since the scale last moved.

    Source: fairseq/optim/dynamic_loss_scaler.py in fairseq. As there, growth restarts the count of updates
    but not the count of overflows; only a backoff clears both. `tolerance=0` is the dynamic rule.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    tolerance: float = 0.05

    name: ClassVar[str] = "tolerance"
    settings_type = ToleranceSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        check_growth(self.growth_factor, self.growth_interval)
        check_backoff(self.backoff_factor)
        if not 0.0 <= self.tolerance <= 1.0:
            raise ValueError(
                f"tolerance={self.tolerance}: must lie between 0 and 1; 0.05 tolerates one in twenty"
            )

    @override
    def init_state(self, init_scale: float) -> ToleranceState:
        return ToleranceState(float32(init_scale), int32(0), int32(0), int32(0))

    @staticmethod
    @override
    def advance(
        settings: ToleranceSettings, state: ToleranceState, found_inf: Tensor, amax: Tensor | None = None
    ) -> ToleranceState:
        overflowed = found_inf != 0
        clean_updates = torch.where(overflowed, 0, state.growth_tracker + 1)
        is_due = clean_updates >= settings.growth_interval
        updates = state.updates_since_rescale + 1
        overflows = state.tolerated_overflows + overflowed.int()
        backs_off = overflowed & (overflows.double() / updates >= settings.tolerance)
        kept = torch.where(is_due, grow(state.scale, settings.growth_factor), state.scale)
        scale = torch.where(backs_off, state.scale.double() * settings.backoff_factor, kept)
        return ToleranceState(
            scale=bounded(scale, settings),
            growth_tracker=torch.where(is_due, 0, clean_updates),
            updates_since_rescale=torch.where(backs_off | is_due, 0, updates),
            tolerated_overflows=torch.where(backs_off, 0, overflows),
        )
