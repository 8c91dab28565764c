"""What a user is told while training goes on: once at the beginning of a state, and again when it returns."""

from collections.abc import Callable
from typing import Any

import pytest

from ampx.track.record import StepRecord
from ampx.training.alarms import Alarms
from ampx.trial import Trial
from ampx.worker import run_trial


def records(applied: str, scale: float | None = 64.0) -> list[StepRecord]:
    """`records("+--")` is one applied attempt and two skipped ones."""
    return [
        StepRecord(
            step=step, optimizer="main", loss=1.0, lr=0.1, grad_norm=None, grad_amax=None, scale=scale,
            growth_tracker=0, found_inf=mark == "-", applied=mark == "+",
            skip_reason="inf_grad" if mark == "-" else None,
        )
        for step, mark in enumerate(applied)
    ]  # fmt: skip


@pytest.fixture
def told() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def alarms(told: list[tuple[str, dict[str, Any]]]) -> Alarms:
    return Alarms(lambda kind, **details: told.append((kind, details)), min_scale=1.0)


def test_a_high_share_of_skips_is_told_once_and_again_when_it_returns(
    alarms: Alarms, told: list[Any]
) -> None:
    """BUGS 30. Red when the state is not remembered (told at every flush), or never forgotten."""
    for flush in ("++++++", "----++", "------", "++++++", "----"):
        alarms.read(records(flush))
    assert [kind for kind, _ in told] == ["skip_rate", "skip_rate"]
    assert told[0][1]["share"] == pytest.approx(4 / 6)
    assert told[0][1]["step"] == 5


@pytest.mark.parametrize("flush", ["---+++", "-" + "+" * 20, "+" * 20, ""])
def test_a_few_skips_of_a_scale_that_settles_are_no_alarm(
    flush: str, alarms: Alarms, told: list[Any]
) -> None:
    alarms.read(records(flush))
    assert told == []


def test_skips_at_the_floor_are_told_and_a_scale_that_only_stands_there_is_not(
    alarms: Alarms, told: list[Any]
) -> None:
    """BUGS 30, INVARIANTS 10. Red when the floor alone is the alarm."""
    alarms.read(records("+++", scale=1.0))
    assert told == []
    alarms.read(records("+-+", scale=1.0))
    assert [kind for kind, _ in told] == ["scale_at_floor"]
    assert told[0][1]["scale"] == 1.0
    assert "use dtype=bf16" in told[0][1]["advice"]


def test_skips_without_a_scaler_say_nothing_of_a_floor(alarms: Alarms, told: list[Any]) -> None:
    alarms.read(records("------", scale=None))
    assert [kind for kind, _ in told] == ["skip_rate"]


def test_parameters_that_stand_still_are_told_with_their_share(alarms: Alarms, told: list[Any]) -> None:
    """BUGS 25."""
    for share in (0.49, 0.75, 0.9, 0.1, 0.5):
        alarms.unchanged(7, share)
    assert [(kind, details["unchanged_share"]) for kind, details in told] == [
        ("stagnation", 0.75), ("stagnation", 0.5),
    ]  # fmt: skip


def test_a_run_whose_scale_reaches_the_floor_writes_it_with_advice(
    make_trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    """BUGS 30 and 3: at its floor of 2**60 this scale overflows at every step, and may fall no further."""
    trial = make_trial(
        "model=mlp", "dtype=fp16", "scaler.init_scale=2**61", "scaler.min_scale=2**60", "train.log_every=2",
        "scaler.abort_after_skips=8", "train.max_steps=20", "data.batch_size=16",
    )  # fmt: skip
    assert run_trial(trial).state == "diverged"
    (event,) = [event for event in trial.read_jsonl("events.jsonl") if event["kind"] == "scale_at_floor"]
    assert event["scale"] == 2.0**60
    assert "scale_at_floor" in capsys.readouterr().out
    assert {record["scale"] for record in trial.read_jsonl("steps.jsonl")} == {2.0**61, 2.0**60}
