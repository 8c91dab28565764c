"""The shapes of the learning rate over a run, as tensor functions, and tables of their values."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from ampx.build import import_target
from ampx.config.schedule import BuiltinScheduleSettings, DecaySettings, NoScheduleSettings


def factors(settings: BuiltinScheduleSettings, planned_steps: int | None) -> Tensor:
    """Float64 factors of the learning rate after 0, 1, … applied steps; the last one holds for ever."""
    if settings.needs_plan and planned_steps is None:
        raise ValueError(
            f"schedule={settings.kind}: must know how many steps the run has, which data without a length do "
            "not say; set train.max_steps, or schedule=constant"
        )
    shape = cast(Callable[..., Tensor], import_target(settings.implementation))
    warmup_steps = _warmup_steps(settings, planned_steps or 0)
    decays = hasattr(settings, "final_factor")
    last = max(planned_steps or 0, warmup_steps) if decays else warmup_steps
    applied = torch.arange(last + 1, dtype=torch.float64)
    progress = ((applied - warmup_steps) / max(last - warmup_steps, 1)).clamp(min=0)
    arguments = {"final_factor": settings.final_factor} if isinstance(settings, DecaySettings) else {}
    return warmup(applied, warmup_steps) * shape(progress, **arguments)


def _warmup_steps(settings: BuiltinScheduleSettings, planned_steps: int) -> int:
    if isinstance(settings, NoScheduleSettings):
        return 0
    if settings.warmup_steps is not None:
        return settings.warmup_steps
    return round(settings.warmup_fraction * planned_steps)


def warmup(applied: Tensor, warmup_steps: int) -> Tensor:
    """Rises linearly from 1 / (warmup_steps + 1) to 1, which it has after `warmup_steps` applied steps."""
    return ((applied + 1) / (warmup_steps + 1)).clamp(max=1)


def constant(progress: Tensor) -> Tensor:
    """1 everywhere; `progress` runs from 0 at the end of the warm-up to 1 at the end of the run."""
    return torch.ones_like(progress)


def cosine(progress: Tensor, *, final_factor: float) -> Tensor:
    """Half a cosine from 1 to `final_factor`, as torch's CosineAnnealingLR."""
    return final_factor + (1 - final_factor) * (1 + torch.cos(math.pi * progress)) / 2


def linear(progress: Tensor, *, final_factor: float) -> Tensor:
    """A straight line from 1 to `final_factor`."""
    return 1 - (1 - final_factor) * progress


class ScheduleTable:
    """Float32 values by the number of applied steps, the same on the host and on a device."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._numbers = values.cpu().numpy()  # a list would take ten times the memory

    def at(self, applied: int) -> float:
        """The value after so many applied steps."""
        return self._numbers.item(min(applied, len(self._numbers) - 1))

    def at_tensor(self, applied: Tensor) -> Tensor:
        """The same as a new 0-d tensor, without a host sync; `applied` is 0-d int64."""
        return self._values.index_select(0, applied.clamp(max=len(self._numbers) - 1).reshape(1)).reshape(())
