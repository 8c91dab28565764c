"""The `optimizer` group. It applies to every named optimizer of a task; `by_name` overrides it for one."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from ampx.config.explain import explain
from ampx.config.fields import NonNegativeFloat, PositiveFloat, Settings, TargetSettings

Rounding = Literal["nearest", "stochastic", "kahan"]
Fused = Literal["auto"] | bool
Beta = Annotated[NonNegativeFloat, Field(lt=1)]
ByName = dict[str, dict[str, Any]]

_OURS = {"kind", "fused", "no_decay", "rounding", "by_name"}  # not the optimizer's own arguments


class SharedSettings(Settings):
    """What every optimizer has. A class ends in `by_name`, which is checked against the fields before it."""

    no_decay: bool
    rounding: Rounding

    @field_validator("by_name", check_fields=False)
    @classmethod
    def _overrides_make_settings(cls, by_name: ByName, info: ValidationInfo) -> ByName:
        if len(info.data) < len(cls.model_fields) - 1:  # a field before it is wrong, which is told already
            return by_name
        for name, overrides in by_name.items():
            values = {**info.data, **overrides, "by_name": {}}
            try:
                cls.model_validate(values)
            except ValidationError as error:
                raise ValueError(f"for {name!r}, {explain(error, cls, values, ())[0]}") from error
        return by_name


class BuiltinSettings(SharedSettings):
    """An optimizer of torch. `fused` is torch's one-kernel step, which can skip on the device."""

    lr: PositiveFloat
    weight_decay: NonNegativeFloat
    fused: Fused

    @property
    def arguments(self) -> dict[str, Any]:
        """What the optimizer's constructor takes, without `fused`."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in _OURS}


class AdamWSettings(BuiltinSettings):
    implementation: ClassVar[str] = "torch.optim.AdamW"
    kind: Literal["adamw"]
    betas: tuple[Beta, Beta]
    eps: NonNegativeFloat
    by_name: ByName


class AdamSettings(BuiltinSettings):
    implementation: ClassVar[str] = "torch.optim.Adam"
    kind: Literal["adam"]
    betas: tuple[Beta, Beta]
    eps: NonNegativeFloat
    by_name: ByName


class SGDSettings(BuiltinSettings):
    implementation: ClassVar[str] = "torch.optim.SGD"
    kind: Literal["sgd"]
    momentum: NonNegativeFloat
    nesterov: bool
    by_name: ByName

    @field_validator("nesterov")
    @classmethod
    def _has_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and info.data.get("momentum") == 0:
            raise ValueError("needs momentum; set optimizer.momentum=0.9 or optimizer.nesterov=false")
        return nesterov


class AdagradSettings(BuiltinSettings):
    implementation: ClassVar[str] = "torch.optim.Adagrad"
    kind: Literal["adagrad"]
    lr_decay: NonNegativeFloat
    initial_accumulator_value: NonNegativeFloat
    eps: NonNegativeFloat
    by_name: ByName


class CustomOptimizerSettings(SharedSettings, TargetSettings):
    """Any other `torch.optim.Optimizer`: its learning rate and the rest are arguments beside `_target_`."""

    by_name: ByName


BuiltinOptimizerSettings = AdamWSettings | AdamSettings | SGDSettings | AdagradSettings
OptimizerSettings = Annotated[BuiltinOptimizerSettings | CustomOptimizerSettings, Field(discriminator="kind")]


def settings_for(settings: OptimizerSettings, name: str) -> OptimizerSettings:
    """The settings of the optimizer `name`: the group's, with its own overrides."""
    values = settings.model_dump(by_alias=True) | settings.by_name.get(name, {})
    return type(settings).model_validate({**values, "by_name": {}})
