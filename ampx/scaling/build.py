"""From the `scaler` settings to a policy and a scaler."""

import dataclasses
import pkgutil

from ampx.config.scaler import LossScalingSettings, NoScalerSettings, ScalerSettings
from ampx.scaling.loss_scaler import LossScaler
from ampx.scaling.policies import ScalePolicy


def build_policy(settings: LossScalingSettings) -> ScalePolicy:
    policy_type: type[ScalePolicy] = pkgutil.resolve_name(settings.implementation)
    names = [field.name for field in dataclasses.fields(policy_type)]
    return policy_type(**{name: getattr(settings, name) for name in names})


def build_loss_scaler(settings: ScalerSettings, device: str, *, active: bool) -> LossScaler:
    """The scaler of a run; a disabled one, which does nothing, unless `active` (see `scaler_is_active`)."""
    if not active:
        return LossScaler(device, enabled=False)
    assert not isinstance(settings, NoScalerSettings)
    return LossScaler(device, settings.init_scale, policy=build_policy(settings))
