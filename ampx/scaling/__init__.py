"""Loss scaling: the scaler and the policies that move its scale."""

from ampx.scaling.build import build_loss_scaler, build_policy
from ampx.scaling.loss_scaler import LossScaler
from ampx.scaling.policies import Dynamic, Hysteresis, LogMax, ScalePolicy, Static, Tolerance

__all__ = [
    "Dynamic",
    "Hysteresis",
    "LogMax",
    "LossScaler",
    "ScalePolicy",
    "Static",
    "Tolerance",
    "build_loss_scaler",
    "build_policy",
]
