"""What a job gets from the worker, and what it gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ampx.config.experiment import ExperimentConfig
from ampx.status import State
from ampx.track.record import Tracker
from ampx.trial import Trial


@dataclass(frozen=True, slots=True)
class JobContext:
    """One trial under its lock, with whoever wants to hear of it.

    `report` takes what `result.json` will say; a job calls it however it ends, also before it raises.
    """

    trial: Trial
    config: ExperimentConfig
    device: torch.device
    trackers: list[Tracker]
    is_stop_requested: Callable[[], bool]
    report: Callable[[Mapping[str, Any]], None]
    note: Callable[[str], None]
    start_display: Callable[[int | None, int], None]

    def tell(self, kind: str, **details: object) -> None:
        """Write an event into the trial, and say it to the user where it carries advice."""
        self.trial.event(kind, **details)
        if advice := details.get("advice"):
            shown = ", ".join(
                f"{name}={_short(value)}" for name, value in details.items() if name != "advice"
            )
            self.note(f"{kind} ({shown}): {advice}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended; None as `state` means that somebody outside stopped it."""

    state: State | None
    reason: str | None = None


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
