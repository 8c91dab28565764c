"""Scale policies: rules that choose the next loss scale, one family a file."""

from ampx.scaling.policies.dynamic import Dynamic
from ampx.scaling.policies.hysteresis import Hysteresis
from ampx.scaling.policies.logmax import LogMax
from ampx.scaling.policies.policy import ScalePolicy
from ampx.scaling.policies.static import Static
from ampx.scaling.policies.tolerance import Tolerance

__all__ = ["Dynamic", "Hysteresis", "LogMax", "ScalePolicy", "Static", "Tolerance"]
