"""The `schedule` group: the learning rate as a factor, by the number of applied steps."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ampx.config.fields import Fraction, NonNegativeInt, Settings, TargetSettings


class NoScheduleSettings(Settings):
    implementation: ClassVar[str] = "ampx.training.factors.constant"
    needs_plan: ClassVar[bool] = False
    kind: Literal["none"]


class ConstantSettings(Settings):
    """The factor rises linearly to 1, in `warmup_steps` or else in that share of the planned steps."""

    implementation: ClassVar[str] = "ampx.training.factors.constant"
    kind: Literal["constant"]
    warmup_steps: NonNegativeInt | None
    warmup_fraction: Fraction

    @property
    def needs_plan(self) -> bool:
        """Whether the number of steps must be known beforehand."""
        return self.warmup_steps is None and self.warmup_fraction > 0


class DecaySettings(Settings):
    """As a constant schedule, but after the warm-up the factor falls to `final_factor`."""

    needs_plan: ClassVar[bool] = True
    warmup_steps: NonNegativeInt | None
    warmup_fraction: Fraction
    final_factor: Fraction


class CosineSettings(DecaySettings):
    implementation: ClassVar[str] = "ampx.training.factors.cosine"
    kind: Literal["cosine"]


class LinearSettings(DecaySettings):
    implementation: ClassVar[str] = "ampx.training.factors.linear"
    kind: Literal["linear"]


BuiltinScheduleSettings = NoScheduleSettings | ConstantSettings | CosineSettings | LinearSettings
ScheduleSettings = Annotated[BuiltinScheduleSettings | TargetSettings, Field(discriminator="kind")]
