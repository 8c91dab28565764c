"""Which device a trial runs on. Imports torch when asked, not before."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def find_device(setting: str) -> "torch.device":
    """The device that `device=` means; `auto` takes CUDA, then MPS, then the CPU. ValueError if not there."""
    import torch

    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if setting == "auto":
        return torch.device(next(kind for kind, is_there in available.items() if is_there))
    if not available[setting]:
        present = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ValueError(
            f"device={setting}: torch {torch.__version__} finds none here, only {present}; use device=auto"
        )
    return torch.device(setting)
