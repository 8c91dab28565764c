"""A scale that never moves."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor
from typing_extensions import override

from ampx.scaling.policies.policy import ScalePolicy, float32


class StaticSettings(NamedTuple):
    min_scale: Tensor
    max_scale: Tensor


class StaticState(NamedTuple):
    scale: Tensor


@dataclass(frozen=True)
class Static(ScalePolicy):
    """The constant scale of "Mixed Precision Training" (Micikevicius et al., arXiv:1710.03740); steps that
    overflow are still skipped."""

    name: ClassVar[str] = "static"
    settings_type = StaticSettings

    @override
    def init_state(self, init_scale: float) -> StaticState:
        return StaticState(scale=float32(init_scale))

    @staticmethod
    @override
    def advance(
        settings: StaticSettings, state: StaticState, found_inf: Tensor, amax: Tensor | None = None
    ) -> StaticState:
        return state
