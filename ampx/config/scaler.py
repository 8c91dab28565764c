"""The `scaler` group: which rule chooses the loss scale, and when a run that keeps overflowing stops."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ampx.config.fields import Float, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Settings


def _parse_switch(value: object) -> object:
    words = {"auto": "auto", "true": True, "false": False}
    parsed = words.get(str(value).lower())
    if parsed is None:
        raise ValueError("must be auto, true or false")
    return parsed


Switch = Annotated[Literal["auto"] | bool, BeforeValidator(_parse_switch)]
LossScale = Annotated[PositiveFloat, Field(ge=2.0**-126, le=(2 - 2**-23) * 2.0**127)]  # a normal float32
GrowthFactor = Annotated[Float, Field(gt=1, allow_inf_nan=False)]
BackoffFactor = Annotated[Float, Field(gt=0, lt=1)]
Decay = Annotated[Float, Field(ge=0, lt=1)]


class NoScalerSettings(Settings):
    """No loss scaling. With a float16 compute dtype that takes `allow_unscaled`."""

    kind: Literal["none"]
    abort_after_skips: PositiveInt
    allow_unscaled: bool

    enabled: ClassVar[Literal[False]] = False


class _LossScaling(Settings):
    """What every rule shares. `enabled=auto` scales only where float16 is in use."""

    enabled: Switch
    init_scale: LossScale
    min_scale: NonNegativeFloat
    max_scale: Annotated[Float, Field(gt=0)]  # inf is no ceiling
    abort_after_skips: PositiveInt
    allow_unscaled: bool

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not self.min_scale <= self.init_scale <= self.max_scale:
            raise ValueError(
                f"scaler.init_scale={self.init_scale:g}: must lie within scaler.min_scale={self.min_scale:g}"
                f" and scaler.max_scale={self.max_scale:g}; change init_scale or widen the bounds"
            )
        return self


class DynamicScalerSettings(_LossScaling):
    kind: Literal["dynamic", "conservative"]
    growth_factor: GrowthFactor
    backoff_factor: BackoffFactor
    growth_interval: PositiveInt

    implementation: ClassVar[str] = "ampx.scaling.policies.Dynamic"


class StaticScalerSettings(_LossScaling):
    kind: Literal["static"]

    implementation: ClassVar[str] = "ampx.scaling.policies.Static"


class HysteresisScalerSettings(_LossScaling):
    kind: Literal["hysteresis"]
    growth_factor: GrowthFactor
    backoff_factor: BackoffFactor
    growth_interval: PositiveInt
    hysteresis: PositiveInt
    consecutive: bool

    implementation: ClassVar[str] = "ampx.scaling.policies.Hysteresis"


class ToleranceScalerSettings(_LossScaling):
    kind: Literal["tolerance"]
    growth_factor: GrowthFactor
    backoff_factor: BackoffFactor
    growth_interval: PositiveInt
    tolerance: Fraction

    implementation: ClassVar[str] = "ampx.scaling.policies.Tolerance"


class LogMaxScalerSettings(_LossScaling):
    kind: Literal["logmax"]
    std_dev: Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
    beta1: Decay
    beta2: Decay
    backoff_factor: BackoffFactor

    implementation: ClassVar[str] = "ampx.scaling.policies.LogMax"


LossScalingSettings = (
    DynamicScalerSettings
    | StaticScalerSettings
    | HysteresisScalerSettings
    | ToleranceScalerSettings
    | LogMaxScalerSettings
)
ScalerSettings = Annotated[NoScalerSettings | LossScalingSettings, Field(discriminator="kind")]
