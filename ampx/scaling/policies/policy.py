"""What a scale policy is, and the checks and arithmetic that the families share.

Arithmetic is float64 rounded once to the float32 scale: torch's kernel computes so, and float32 alone drifts
from it by the last bit.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

FLOAT32_TINY = torch.finfo(torch.float32).tiny  # below it 1/scale is no float32 any more
FLOAT32_MAX = torch.finfo(torch.float32).max
_SETTING_DTYPES: dict[Any, torch.dtype] = {float: torch.float64, int: torch.int64, bool: torch.bool}


class Bounds(Protocol):
    """The part of every policy's settings that limits the scale."""

    @property
    def min_scale(self) -> Tensor: ...
    @property
    def max_scale(self) -> Tensor: ...


class ScaleState(Protocol):
    """What every policy's state is: a NamedTuple of tensors, the float32 scale among them."""

    @property
    def scale(self) -> Tensor: ...
    def _asdict(self) -> dict[str, Tensor]: ...
    def _replace(self, **fields: Any) -> Self: ...


@dataclass(frozen=True, kw_only=True)
class ScalePolicy(ABC):
    """A rule for the next loss scale: hyperparameters as plain numbers, and one pure tensor function.

    `settings` and the states are NamedTuples of tensors that broadcast against each other: 0-d in training,
    one entry per candidate when many settings are replayed at once. Only the policy looks inside its own.
    """

    min_scale: float = 0.0
    max_scale: float = math.inf

    name: ClassVar[str]
    settings_type: ClassVar[Callable[..., Any]]  # a NamedTuple of tensors named like the dataclass's fields
    needs_amax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bounds(self.min_scale, self.max_scale)

    @property
    def settings(self) -> Any:
        """The hyperparameters as 0-d CPU tensors."""
        values = {
            f.name: torch.tensor(getattr(self, f.name), dtype=_SETTING_DTYPES[f.type]) for f in fields(self)
        }
        return self.settings_type(**values)

    def within(self, min_scale: float, max_scale: float) -> Self:
        """This policy held within narrower bounds."""
        check_bounds(min_scale, max_scale)
        return replace(
            self, min_scale=max(min_scale, self.min_scale), max_scale=min(max_scale, self.max_scale)
        )

    @abstractmethod
    def init_state(self, init_scale: float) -> Any:
        """The state before the first update, as 0-d CPU tensors that nobody else holds."""

    @staticmethod
    @abstractmethod
    def advance(settings: Any, state: Any, found_inf: Tensor, amax: Tensor | None) -> Any:
        """The state after one update; pure, on any device, without a host sync.

        `found_inf` is nonzero where a gradient was inf or NaN. `amax` is the largest magnitude among the
        unscaled gradients; it may be None unless `needs_amax`, and is ignored where `found_inf` is set.
        """

    def advance_(self, settings: Any, state: Any, found_inf: Tensor, amax: Tensor | None) -> Any:
        """`advance` for the training loop: the same numbers, but `state` may be overwritten."""
        return self.advance(settings, state, found_inf, amax)

    def readmit(self, state: Any) -> Any:
        """A state that other settings produced, made to fit these."""
        return state._replace(scale=self.clamp_(state.scale.clone()))

    def clamp_(self, scale: Tensor) -> Tensor:
        """Bring a float32 `scale` within the bounds, in place."""
        return scale.clamp_(self.min_scale, min(self.max_scale, FLOAT32_MAX))


def grow(scale: Tensor, factor: Tensor) -> Tensor:
    """`scale * factor` in float64, or `scale` where the product would be inf in float32."""
    grown = scale.double() * factor
    return torch.where(grown.float().isfinite(), grown, scale)


def bounded(scale: Tensor, bounds: Bounds) -> Tensor:
    """`scale` clamped into the bounds, then rounded to float32."""
    return torch.clamp(scale, bounds.min_scale, bounds.max_scale).float()


def float32(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def int32(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


def check_bounds(min_scale: float, max_scale: float) -> None:
    if not 0.0 <= min_scale <= FLOAT32_MAX:
        raise ValueError(f"min_scale={min_scale}: must be finite and at least 0; 1 is a usual floor")
    if not max(min_scale, FLOAT32_TINY) <= max_scale:
        raise ValueError(
            f"max_scale={max_scale}: must be positive and at least min_scale={min_scale};"
            " raise max_scale or lower min_scale"
        )


def check_growth(growth_factor: float, growth_interval: int) -> None:
    if not 1.0 < growth_factor < math.inf:
        raise ValueError(
            f"growth_factor={growth_factor}: must be finite and greater than 1;"
            " use 2.0, or the static policy for a scale that never grows"
        )
    check_count("growth_interval", growth_interval, "use 2000, or a huge number to never grow")


def check_backoff(backoff_factor: float) -> None:
    if not 0.0 < backoff_factor < 1.0:
        raise ValueError(
            f"backoff_factor={backoff_factor}: must lie between 0 and 1, both excluded;"
            " use 0.5, or the static policy for a scale that never shrinks"
        )


def check_count(name: str, value: int, way_out: str) -> None:
    if not (isinstance(value, int) and 1 <= value < 2**63):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{name}={value}: must be a whole number of at least 1; {way_out}")
