"""Attempts hold tensors, records hold numbers, and every skip has its reason."""

import json
import math

import pytest
import torch

from ampx.track.record import StepRecord
from ampx.training.ledger import Attempt, Ledger


def attempt(step: int = 0, **changes: object) -> Attempt:
    defaults: dict[str, object] = {
        "step": step, "optimizer": "main", "loss": torch.tensor(0.5), "lr": torch.tensor(1e-3),
        "grad_norm": torch.tensor(2.0, dtype=torch.float64), "grad_amax": torch.tensor(1.0), "scale": 8.0,
        "growth_tracker": torch.tensor(3, dtype=torch.int32), "found_inf": torch.tensor(0.0),
        "metrics": {"accuracy": torch.tensor(0.25)},
    }  # fmt: skip
    return Attempt(**{**defaults, **changes})  # type: ignore[arg-type]


class Listener:
    def __init__(self) -> None:
        self.heard: list[StepRecord] = []

    def on_records(self, records: list[StepRecord]) -> None:
        self.heard += records


def flushed(*attempts: Attempt) -> tuple[list[StepRecord], Ledger]:
    listener = Listener()
    ledger = Ledger([listener], lambda *_: None)
    for each in attempts:
        ledger.add(each)
    ledger.flush()
    return listener.heard, ledger


def test_a_record_reads_as_one_json_object_with_the_contracts_keys() -> None:
    (record,), _ = flushed(attempt())
    assert record.as_json() == {
        "accuracy": 0.25, "step": 0, "optimizer": "main", "loss": 0.5, "lr": 0.001, "grad_norm": 2.0,
        "grad_amax": 1.0, "scale": 8.0, "growth_tracker": 3, "found_inf": False, "applied": True,
        "skip_reason": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "norm", "reason"),
    [
        (1.0, math.inf, "inf_grad"),
        (1.0, math.nan, "nan_grad"),
        (math.nan, math.nan, "nonfinite_loss"),
        (math.inf, math.inf, "nonfinite_loss"),
    ],
)
def test_a_skip_has_its_reason_and_no_number_that_json_lacks(loss: float, norm: float, reason: str) -> None:
    (record,), ledger = flushed(attempt(loss=loss, grad_norm=norm, found_inf=1.0))
    assert (record.applied, record.skip_reason) == (False, reason)
    assert ledger.tallies["main"].skipped == {reason: 1}
    json.dumps(record.as_json(), allow_nan=False)


def test_whether_a_step_was_applied_is_found_inf_alone() -> None:
    """BUGS 5: an attempt with a finite gradient is applied, whatever its loss or its scale did."""
    (record,), _ = flushed(attempt(loss=math.nan))
    assert record.applied
    assert record.loss is None


def test_skips_in_a_row_are_counted_within_a_flush_and_across() -> None:
    skipped = [attempt(step, found_inf=1.0, grad_norm=math.inf) for step in range(3)]
    _, ledger = flushed(*skipped, attempt(3))
    assert (ledger.consecutive_skips(), ledger.longest_skips()) == (0, 3)
    restored = Ledger([], lambda *_: None)
    restored.load_state_dict(ledger.state_dict())
    assert restored.state_dict() == ledger.state_dict()
    assert restored.longest_skips() == 0, "a streak of the past ends no run of the present"


def test_a_tensor_that_is_shared_by_two_attempts_is_read_for_both() -> None:
    loss = torch.tensor(4.0)
    records, _ = flushed(attempt(0, loss=loss), attempt(1, loss=loss))
    assert [record.loss for record in records] == [4.0, 4.0]
