"""OpenSeq2Seq's rule: the scale follows the statistics of the largest gradient, before anything overflows."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from ampx.scaling.policies.policy import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    ScalePolicy,
    bounded,
    check_backoff,
    float32,
    int32,
)

LOG2_FLOAT16_LIMIT = 16.0  # float16 ends just below 2**16


class LogMaxSettings(NamedTuple):
    std_dev: Tensor
    beta1: Tensor
    beta2: Tensor
    backoff_factor: Tensor
    min_scale: Tensor
    max_scale: Tensor


class LogMaxState(NamedTuple):
    scale: Tensor
    log_mean: Tensor
    slow_log_mean: Tensor
    log_mean_square: Tensor
    num_observed: Tensor


@dataclass(frozen=True)
class LogMax(ScalePolicy):
    """Scale by 2**(16 - mean - std_dev * deviation) of log2(amax), both running and bias-corrected.

    With log2(amax) normal, `std_dev=3.09` lets one update in a thousand overflow. `beta1` decays the mean,
    `beta2` the deviation. Source: NVIDIA OpenSeq2Seq, open_seq2seq/optimizers/automatic_loss_scaler.py,
    LogMaxScaler, and the paper arXiv:1805.10387. Unlike there, an overflow backs off and an all-zero gradient
    changes nothing: neither shows how large the gradient is, so neither enters the statistics.
    """

    std_dev: float = 3.09
    beta1: float = 0.99
    beta2: float = 0.999
    backoff_factor: float = 0.5

    name: ClassVar[str] = "logmax"
    settings_type = LogMaxSettings
    needs_amax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.std_dev < math.inf:
            raise ValueError(f"std_dev={self.std_dev}: must be finite and at least 0; 3.09 is the source's")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name}={beta}: must be at least 0 and below 1; 0.99 remembers 100 updates")
        check_backoff(self.backoff_factor)

    @override
    def init_state(self, init_scale: float) -> LogMaxState:
        zeros = torch.zeros(3, dtype=torch.float64).unbind()
        return LogMaxState(float32(init_scale), *zeros, num_observed=int32(0))

    @staticmethod
    @override
    def advance(
        settings: LogMaxSettings, state: LogMaxState, found_inf: Tensor, amax: Tensor | None
    ) -> LogMaxState:
        assert amax is not None
        overflowed = found_inf != 0
        is_observed = ~overflowed & (amax > 0)
        observed = _observe(settings, state, torch.where(is_observed, amax, 1.0).double().log2())
        scale = torch.where(overflowed, state.scale.double() * settings.backoff_factor, state.scale)
        return LogMaxState(
            bounded(torch.where(is_observed, _proposed_scale(settings, observed), scale), settings),
            *(torch.where(is_observed, new, old) for new, old in zip(observed[1:], state[1:], strict=True)),
        )


def _observe(settings: LogMaxSettings, state: LogMaxState, log_amax: Tensor) -> LogMaxState:
    return LogMaxState(
        scale=state.scale,
        log_mean=torch.lerp(log_amax, state.log_mean, settings.beta1),
        slow_log_mean=torch.lerp(log_amax, state.slow_log_mean, settings.beta2),
        log_mean_square=torch.lerp(log_amax.square(), state.log_mean_square, settings.beta2),
        num_observed=state.num_observed + 1,
    )


def _proposed_scale(settings: LogMaxSettings, state: LogMaxState) -> Tensor:
    fast_bias = 1 - settings.beta1**state.num_observed
    slow_bias = 1 - settings.beta2**state.num_observed
    variance = state.log_mean_square / slow_bias - (state.slow_log_mean / slow_bias).square()
    cutoff = state.log_mean / fast_bias + settings.std_dev * variance.clamp(min=0).sqrt()
    return torch.exp2(LOG2_FLOAT16_LIMIT - cutoff).clamp(FLOAT32_TINY, FLOAT32_MAX)
