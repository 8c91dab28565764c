"""The trial's own files: written before any other tracker hears of anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from ampx.track.record import StepRecord
from ampx.trial import Trial


class LocalTracker:
    """Appends to `steps.jsonl` and `evals.jsonl`, each batch whole or not at all."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def on_records(self, records: Sequence[StepRecord]) -> None:
        """One line per attempted step of one optimizer."""
        self._trial.append_json("steps.jsonl", [record.as_json() for record in records])

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line per evaluation; `step` is the number of attempts before it."""
        self._trial.append_json("evals.jsonl", [{"step": step, **metrics}])

    def on_end(self, result: Mapping[str, Any]) -> None:
        """`result.json`."""
        self._trial.write_json("result.json", dict(result))
