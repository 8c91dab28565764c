"""Learning rates by the number of applied steps: from a table, or by a scheduler of torch."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampx.build import build
from ampx.config.fields import TargetSettings
from ampx.config.schedule import ScheduleSettings
from ampx.training.factors import ScheduleTable, factors

Rate = TypeVar("Rate", float, Tensor)


class Schedule(Protocol):
    """Sets one optimizer's learning rates before each attempt, and counts the applied ones."""

    needs_host: bool

    def prepare(self) -> float:
        """Set the learning rates for the next attempt; the first group's."""
        ...

    def prepare_tensor(self) -> Tensor:
        """As `prepare`, without waiting for the device unless `needs_host`."""
        ...

    def advance(self) -> None:
        """Count an applied step."""
        ...

    def advance_tensor(self, found_inf: Tensor) -> None:
        """Count a step if `found_inf`, one element, is 0."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The number of applied steps; the rule is the config's."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, under this config's rule."""
        ...


def build_schedule(settings: ScheduleSettings, optimizer: Optimizer, planned_steps: int | None) -> Schedule:
    """The schedule of one optimizer; `planned_steps` is None where the run's length is unknown."""
    if isinstance(settings, TargetSettings):
        return TorchSchedule(optimizer, _build_scheduler(settings, optimizer))
    return TableSchedule(optimizer, factors(settings, planned_steps))


class TableSchedule:
    """Reads each group's learning rate from a table of its base rate times the factors."""

    needs_host = False

    def __init__(self, optimizer: Optimizer, factors: Tensor) -> None:
        self._optimizer = optimizer
        groups_of: dict[float, list[int]] = {}  # by index: loading an optimizer replaces its groups
        for index, group in enumerate(optimizer.param_groups):
            groups_of.setdefault(float(group["lr"]), []).append(index)
        device = optimizer.param_groups[0]["params"][0].device
        self._tables = [
            (ScheduleTable((lr * factors).float().to(device)), indices) for lr, indices in groups_of.items()
        ]
        self._applied = 0
        self._applied_on_device = torch.zeros((), dtype=torch.int64, device=device)  # since the last load

    def prepare(self) -> float:
        return self._set([(table.at(self._applied), indices) for table, indices in self._tables])

    def prepare_tensor(self) -> Tensor:
        applied = self._applied_on_device + self._applied
        return self._set([(table.at_tensor(applied), indices) for table, indices in self._tables])

    def _set(self, rates: list[tuple[Rate, list[int]]]) -> Rate:
        groups = self._optimizer.param_groups
        for lr, indices in rates:
            for index in indices:
                groups[index]["lr"] = lr
        return groups[0]["lr"]

    def advance(self) -> None:
        self._applied += 1

    def advance_tensor(self, found_inf: Tensor) -> None:
        self._applied_on_device += (found_inf == 0).reshape(())

    def state_dict(self) -> dict[str, Any]:
        return {"applied": self._applied + int(self._applied_on_device)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._applied = state["applied"]
        self._applied_on_device.zero_()


class TorchSchedule:
    """Steps a torch LRScheduler on applied steps only. It lives on the host."""

    needs_host = True

    def __init__(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._applied = 0

    def prepare(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def prepare_tensor(self) -> Tensor:
        return torch.tensor(self.prepare())

    def advance(self) -> None:
        self._scheduler.step()
        self._applied += 1

    def advance_tensor(self, found_inf: Tensor) -> None:
        if not found_inf.item():
            self.advance()

    def state_dict(self) -> dict[str, Any]:
        return {"applied": self._applied}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Step a fresh scheduler as often as the saved one was: its own state would bring back old rules."""
        with warnings.catch_warnings():
            # the optimizer's steps are in the past
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            while self._applied < state["applied"]:
                self.advance()


def _build_scheduler(settings: TargetSettings, optimizer: Optimizer) -> LRScheduler:
    partial = cast(
        Callable[[Optimizer], object],
        build(settings.target, {**settings.arguments, "_partial_": True}, setting="schedule"),
    )
    scheduler = partial(optimizer)
    typed = f"schedule._target_={settings.target}"
    if not isinstance(scheduler, LRScheduler):
        raise ValueError(
            f"{typed}: gave a {type(scheduler).__name__}; it must be or return a "
            "torch.optim.lr_scheduler.LRScheduler of the optimizer that it is called with"
        )
    required = [p for p in inspect.signature(scheduler.step).parameters.values() if p.default is p.empty]
    if required:
        raise ValueError(
            f"{typed}: its step needs {', '.join(p.name for p in required)}, which the loop does not have; "
            "use a scheduler that follows the number of steps"
        )
    return scheduler
