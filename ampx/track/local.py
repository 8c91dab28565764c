"""The trial's own files: written before any other tracker hears of anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from ampx.status import utc_now
from ampx.track.record import StepRecord
from ampx.trial import Trial


class LocalTracker:
    """Appends to `steps.jsonl` and `evals.jsonl`, each batch whole or not at all."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def on_records(self, records: Sequence[StepRecord]) -> None:
        """One line per attempted step of one optimizer, and an event per skip."""
        self._trial.append_json("steps.jsonl", [record.as_json() for record in records])
        skips = [_skip(record) for record in records if not record.applied]
        self._trial.append_json(
            "events.jsonl", [{"time": utc_now(), "kind": "skip", **skip} for skip in skips]
        )

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line per evaluation; `step` is the number of attempts before it."""
        self._trial.append_json("evals.jsonl", [{"step": step, **metrics}])

    def on_end(self, result: Mapping[str, Any]) -> None:
        """`result.json`."""
        self._trial.write_json("result.json", dict(result))


def _skip(record: StepRecord) -> dict[str, Any]:
    """What a skip left as it was is the same every time: parameters, optimizer, schedule, EMA and buffers."""
    return {
        "step": record.step,
        "optimizer": record.optimizer,
        "reason": record.skip_reason,
        "scale": record.scale,
        "buffers": "restored",
    }
