"""The account of one attempted step, and who may read it.

A record is made by the ledger, which hands batches of them to observers at every flush.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

SkipReason = Literal["inf_grad", "nan_grad", "nonfinite_loss"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One attempted step of one optimizer, as it stands in `steps.jsonl`.

    `step` counts attempts from 0. `scale` is the loss scale this attempt used and `growth_tracker`
    its count before the update; both are None while the scaler is inactive. `grad_norm` is the
    unscaled norm before clipping, None when it is not finite.
    """

    step: int
    optimizer: str
    loss: float | None
    lr: float
    grad_norm: float | None
    grad_amax: float | None
    scale: float | None
    growth_tracker: int | None
    found_inf: bool
    applied: bool
    skip_reason: SkipReason | None
    metrics: Mapping[str, float | None] = field(default_factory=dict[str, float | None])

    def as_json(self) -> dict[str, Any]:
        """The record as one flat JSON object: task metrics stand beside the other keys."""
        return {**self.metrics, **{name: getattr(self, name) for name in _FIELDS}}


_FIELDS = [field.name for field in fields(StepRecord) if field.name != "metrics"]


def finite_or_none(value: float) -> float | None:
    """NaN and inf are not JSON."""
    return value if math.isfinite(value) else None


class Observer(Protocol):
    """Receives what happens in a trial. Only `on_records` is asked of a user's own observer."""

    def on_records(self, records: Sequence[StepRecord]) -> None:
        """Take the records of the attempts since the last flush, oldest first."""
        ...


class Tracker(Observer, Protocol):
    """An observer that also follows evaluations and the end of the trial."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take one evaluation, made after `step` attempts."""
        ...

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Take the content of `result.json`; called once, whatever the outcome."""
        ...
