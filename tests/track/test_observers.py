"""A user's observers: built from their class paths, heard while they live, silent after they die."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ampx.config.tracker import ObserverSettings
from ampx.track.observers import Shielded, build_observers
from ampx.track.record import StepRecord

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def told() -> Told:
    return []


class Everything:
    """Takes all there is, and dies where it is told to."""

    def __init__(self, dies_at: str = "") -> None:
        self.heard: list[str] = []
        self.dies_at = dies_at

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what == self.dies_at:
            raise SystemError(f"dead at {what}")

    def on_records(self, records: Sequence[StepRecord]) -> None:
        self._hear("records")

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._hear("evaluation")

    def on_end(self, result: Mapping[str, Any]) -> None:
        self._hear("end")


class RecordsOnly:
    def on_records(self, records: Sequence[StepRecord]) -> None: ...


class Nothing: ...


def tell_all(observer: Any) -> None:
    observer.on_records([])
    observer.on_evaluation(1, {})
    observer.on_records([])
    observer.on_end({})


def shielded(observer: Any, told: Told) -> Shielded:
    return Shielded(observer, lambda kind, **details: told.append((kind, details)))


def test_it_hears_everything_in_order(told: Told) -> None:
    observer = Everything()
    tell_all(shielded(observer, told))
    assert observer.heard == ["records", "evaluation", "records", "end"]
    assert told == []


@pytest.mark.parametrize(("dies_at", "heard"), [("records", 1), ("evaluation", 2), ("end", 4)])
def test_it_dies_alone_is_told_of_once_and_hears_no_more(dies_at: str, heard: int, told: Told) -> None:
    """Red when the exception goes through, which ends the trial, or when it is called again and again."""
    observer = Everything(dies_at)
    shield = shielded(observer, told)
    tell_all(shield)
    tell_all(shield)
    assert len(observer.heard) == heard
    ((kind, details),) = told
    assert (kind, details["observer"], details["method"]) == (
        "observer_failed",
        "Everything",
        f"on_{dies_at}",
    )
    assert f"SystemError: dead at {dies_at}" in details["error"]


def test_records_alone_are_enough(told: Told) -> None:
    tell_all(shielded(RecordsOnly(), told))
    assert told == []


def settings(target: str, **arguments: Any) -> ObserverSettings:
    return ObserverSettings.model_validate({"_target_": target, **arguments})


def test_observers_are_built_with_their_arguments(told: Told) -> None:
    built = build_observers([settings(f"{__name__}.Everything", dies_at="records")], lambda *_a, **_k: None)
    assert len(built) == 1
    tell_all(built[0])


def test_a_class_that_takes_no_records_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"Nothing: has no method on_records\(records\); give the class one"):
        build_observers([settings(f"{__name__}.Nothing")], lambda *_a, **_k: None)
