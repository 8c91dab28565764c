"""A step record as one flat line of `steps.jsonl`."""

import dataclasses
import json
import math

import pytest

from ampx.track.record import StepRecord, finite_or_none

RECORD = StepRecord(
    step=3, optimizer="main", loss=None, lr=0.1, grad_norm=2.0, grad_amax=1.0, scale=8.0, growth_tracker=2,
    found_inf=True, applied=False, skip_reason="nonfinite_loss",
    metrics={"accuracy": 0.5, "perplexity": None},
)  # fmt: skip


def test_a_record_is_flat_json_with_its_metrics_beside_the_rest() -> None:
    line = json.loads(json.dumps(RECORD.as_json(), allow_nan=False))
    names = {field.name for field in dataclasses.fields(StepRecord)} - {"metrics"}
    assert set(line) == names | {"accuracy", "perplexity"}
    assert all(line[name] == getattr(RECORD, name) for name in names)
    assert (line["accuracy"], line["perplexity"]) == (0.5, None)


@pytest.mark.parametrize("name", ["loss", "step", "applied"])
def test_a_metric_of_the_same_name_does_not_hide_the_account(name: str) -> None:
    """Red when the metrics come last: a task that calls one of them `applied` would rewrite the ledger."""
    record = dataclasses.replace(RECORD, metrics={name: 0.25})
    assert record.as_json()[name] == getattr(RECORD, name)


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECORD.applied = True  # type: ignore[misc]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_not_json(value: float) -> None:
    assert finite_or_none(value) is None
    assert finite_or_none(1.5) == 1.5
