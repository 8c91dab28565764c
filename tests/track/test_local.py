"""The trial's own files, as its tracker leaves them."""

import dataclasses
from collections.abc import Callable

from ampx.track.local import LocalTracker
from ampx.track.record import StepRecord
from ampx.trial import Trial

RECORD = StepRecord(
    step=0, optimizer="main", loss=0.5, lr=0.1, grad_norm=1.0, grad_amax=None, scale=None,
    growth_tracker=None, found_inf=False, applied=True, skip_reason=None, metrics={"accuracy": 0.25},
)  # fmt: skip


def test_records_evaluations_and_the_result_come_back_as_they_were(make_trial: Callable[..., Trial]) -> None:
    trial = make_trial("model=mlp")
    tracker = LocalTracker(trial)
    later = dataclasses.replace(
        RECORD, step=1, applied=False, found_inf=True, skip_reason="inf_grad", loss=None
    )
    tracker.on_records([RECORD])
    tracker.on_records([later, dataclasses.replace(later, optimizer="other")])
    tracker.on_evaluation(2, {"accuracy": 0.75})
    tracker.on_evaluation(4, {"accuracy": 0.8})
    tracker.on_end({"status": "completed", "metrics": {}})
    assert trial.read_jsonl("steps.jsonl") == [
        RECORD.as_json(), later.as_json(), {**later.as_json(), "optimizer": "other"},
    ]  # fmt: skip
    assert trial.read_jsonl("evals.jsonl") == [{"step": 2, "accuracy": 0.75}, {"step": 4, "accuracy": 0.8}]
    assert trial.read_json("result.json") == {"status": "completed", "metrics": {}}


def test_an_evaluation_that_is_not_finite_is_still_json(make_trial: Callable[..., Trial]) -> None:
    """Red when NaN is written as such: no JSON reader but Python's takes it."""
    trial = make_trial("model=mlp")
    LocalTracker(trial).on_evaluation(1, {"loss": float("nan"), "perplexity": float("inf")})
    assert "NaN" not in (trial.path / "evals.jsonl").read_text()
    assert "Infinity" not in (trial.path / "evals.jsonl").read_text()
    assert trial.read_jsonl("evals.jsonl")[0]["step"] == 1
