"""The account of every attempted step of every optimizer.

Attempts hold tensors; a flush reads them all with one synchronisation and hands finished records
to the observers. Whether a step was applied is `found_inf` alone, never guessed from the scale.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ampx.track.record import Observer, SkipReason, StepRecord, finite_or_none

Number = float | Tensor


class Attempt(NamedTuple):
    """One attempted step as the gate left it: every `Number` may still be on the device."""

    step: int
    optimizer: str
    loss: Number
    lr: Number
    grad_norm: Number
    grad_amax: Number | None
    scale: Number | None
    growth_tracker: Number | None
    found_inf: Number
    metrics: Mapping[str, Tensor]


@dataclass(slots=True)
class Tally:
    """Running totals of one optimizer, kept in the checkpoint so that a resumed trial adds on."""

    attempted: int = 0
    applied: int = 0
    consecutive_skips: int = 0
    longest_skips: int = 0
    scale_first: float | None = None
    scale_last: float | None = None
    scale_min: float | None = None
    scale_max: float | None = None
    inf_grad: int = 0
    nan_grad: int = 0
    nonfinite_loss: int = 0

    def add(self, record: StepRecord) -> None:
        """Count one record."""
        self.attempted += 1
        if record.applied:
            self.applied += 1
            self.consecutive_skips = 0
        else:
            self.consecutive_skips += 1
            self.longest_skips = max(self.longest_skips, self.consecutive_skips)
            reason = record.skip_reason or "inf_grad"
            setattr(self, reason, getattr(self, reason) + 1)
        if record.scale is not None:
            self.scale_first = record.scale if self.scale_first is None else self.scale_first
            self.scale_last = record.scale
            self.scale_min = min(record.scale, self.scale_min or record.scale)
            self.scale_max = max(record.scale, self.scale_max or record.scale)

    @property
    def skipped(self) -> dict[str, int]:
        """Skips by reason, without the reasons that never occurred."""
        counts = {
            "inf_grad": self.inf_grad,
            "nan_grad": self.nan_grad,
            "nonfinite_loss": self.nonfinite_loss,
        }
        return {reason: count for reason, count in counts.items() if count}


class Ledger:
    """Collects attempts and turns them into records at every flush."""

    def __init__(self, observers: Sequence[Observer], on_overflow: Callable[[int, str, float], None]) -> None:
        """`on_overflow(step, optimizer, norm)` is told of a finite gradient whose float32 norm is not."""
        self.observers = list(observers)
        self.tallies: dict[str, Tally] = {}
        self._on_overflow = on_overflow
        self._attempts: list[Attempt] = []

    def add(self, attempt: Attempt) -> None:
        """Note one attempt; nothing is read from the device."""
        self._attempts.append(attempt)

    def flush(self) -> list[StepRecord]:
        """Read every pending attempt, count it, and hand the records to the observers."""
        if not self._attempts:
            return []
        attempts, self._attempts = self._attempts, []
        records = [self._close(attempt) for attempt in read_back(attempts)]
        for observer in self.observers:
            observer.on_records(records)
        return records

    def _close(self, attempt: Attempt) -> StepRecord:
        record = close(attempt)
        self.tallies.setdefault(record.optimizer, Tally()).add(record)
        norm = float(attempt.grad_norm)
        if record.applied and norm > torch.finfo(torch.float32).max:
            self._on_overflow(record.step, record.optimizer, norm)
        return record

    def longest_skips(self) -> int:
        """Most skips in a row that any optimizer has met."""
        return max((tally.longest_skips for tally in self.tallies.values()), default=0)

    def has_only_nonfinite_losses(self) -> bool:
        """Whether something was attempted and every loss was inf or NaN."""
        tallies = self.tallies.values()
        return bool(tallies) and all(tally.nonfinite_loss == tally.attempted > 0 for tally in tallies)

    def consecutive_skips(self) -> int:
        """Skips in a row up to the last flush, of the optimizer that has most."""
        return max((tally.consecutive_skips for tally in self.tallies.values()), default=0)

    def state_dict(self) -> dict[str, Any]:
        """The totals as plain numbers."""
        return {
            name: {field: getattr(tally, field) for field in Tally.__slots__ if field != "longest_skips"}
            for name, tally in self.tallies.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from saved totals."""
        self.tallies = {name: Tally(**fields) for name, fields in state.items()}
        for tally in self.tallies.values():
            tally.longest_skips = tally.consecutive_skips  # a streak of the past ends no run of the present


def read_back(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The same attempts with every tensor replaced by its number, one transfer per device and dtype."""
    numbers = _fetch([value for attempt in attempts for value in _tensors(attempt)])
    return [
        attempt._replace(
            **{
                name: numbers[id(value)]
                for name, value in zip(Attempt._fields, attempt, strict=True)
                if isinstance(value, Tensor)
            },
            metrics={name: numbers[id(value)] for name, value in attempt.metrics.items()},
        )
        for attempt in attempts
    ]


def _tensors(attempt: Attempt) -> list[Tensor]:
    return [value for value in (*attempt, *attempt.metrics.values()) if isinstance(value, Tensor)]


def _fetch(tensors: Sequence[Tensor]) -> dict[int, float]:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    numbers: dict[int, float] = {}
    for members in groups.values():
        values = torch.stack([tensor.detach().reshape(()) for tensor in members]).tolist()
        numbers.update(zip(map(id, members), values, strict=True))
    return numbers


def close(attempt: Attempt) -> StepRecord:
    """The finished record of an attempt whose numbers are on the host."""
    found_inf = bool(attempt.found_inf)
    loss, norm = float(attempt.loss), float(attempt.grad_norm)
    amax, scale, tracker = attempt.grad_amax, attempt.scale, attempt.growth_tracker
    return StepRecord(
        step=attempt.step,
        optimizer=attempt.optimizer,
        loss=finite_or_none(loss),
        lr=float(f"{float(attempt.lr):.7g}"),  # float32 holds 7 digits; 0.001 should read 0.001
        grad_norm=finite_or_none(norm),
        grad_amax=None if amax is None else finite_or_none(float(amax)),
        scale=None if scale is None else finite_or_none(float(scale)),
        growth_tracker=None if tracker is None else int(tracker),
        found_inf=found_inf,
        applied=not found_inf,
        skip_reason=_skip_reason(loss, norm) if found_inf else None,
        metrics={name: finite_or_none(float(value)) for name, value in attempt.metrics.items()},
    )


def _skip_reason(loss: float, norm: float) -> SkipReason:
    if not math.isfinite(loss):
        return "nonfinite_loss"
    return (
        "nan_grad" if math.isnan(norm) else "inf_grad"
    )  # any NaN makes the norm NaN, inf alone makes it inf
