"""What a user must be told while training goes on: floors, skip rates, weights that no longer move."""

from collections.abc import Callable, Sequence
from typing import Any

from ampx.track.record import StepRecord

SKIP_SHARE = 0.25  # a healthy dynamic scaler skips one step in `growth_interval`, a thousand times less
UNCHANGED_SHARE = 0.5

Tell = Callable[..., None]


class Alarms:
    """Reads each flush and tells of a state once when it begins and again when it comes back."""

    def __init__(self, tell: Tell, min_scale: float) -> None:
        """`tell(kind, **details)` writes an event."""
        self._tell = tell
        self._min_scale = min_scale
        self._active: set[str] = set()

    def read(self, records: Sequence[StepRecord]) -> None:
        """Look at the records of one flush."""
        if not records:
            return
        last = records[-1]
        skips = sum(not record.applied for record in records)
        share = skips / len(records)
        self._switch(
            "skip_rate",
            share >= SKIP_SHARE and skips > 3,
            step=last.step,
            share=share,
            advice=_advice(records),
        )
        self._switch(
            "scale_at_floor",
            last.scale is not None and last.scale <= self._min_scale and skips > 0,
            step=last.step,
            scale=last.scale,
            advice="gradients are not finite at any scale: check data, loss and lr, or use dtype=bf16",
        )

    def unchanged(self, step: int, share: float) -> None:
        """Take the share of low-precision parameters that an applied step left as they were."""
        self._switch(
            "stagnation",
            share >= UNCHANGED_SHARE,
            step=step,
            unchanged_share=share,
            advice="set optimizer.rounding=stochastic or kahan, or dtype.masters=float32",
        )

    def _switch(self, kind: str, is_on: bool, **details: Any) -> None:
        if is_on and kind not in self._active:
            self._active.add(kind)
            self._tell(kind, **details)
        elif not is_on:
            self._active.discard(kind)


def _advice(records: Sequence[StepRecord]) -> str:
    """What to do about skips, by why they happened and whether a scale was to blame."""
    if any(record.skip_reason == "nonfinite_loss" for record in records):
        return "the loss itself is not finite: lower optimizer.lr, check the data, or run with debug=anomaly"
    if records[-1].scale is None:
        return (
            "gradients are not finite though nothing is scaled: lower optimizer.lr, or run with debug=anomaly"
        )
    return "lower scaler.init_scale, or look for the layer that overflows"
