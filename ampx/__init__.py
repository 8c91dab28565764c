"""ampx: a Hydra-configured experiment framework for mixed precision in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampx.scaling import LossScaler as LossScaler

_PUBLIC = {"LossScaler": "ampx.scaling"}

__all__ = ["LossScaler"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: `ampx show` must not wait for torch."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'ampx' has no attribute {name!r}; it offers {', '.join(sorted(_PUBLIC))}")
