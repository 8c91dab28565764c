"""Throughput from windows between flushes, without what is not training."""

import time

import pytest

from ampx.training.clock import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that `time.perf_counter` shows, to be moved by hand."""
    hands = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: hands[0])
    return hands


def window(clock: Clock, now: list[float], *, steps: int, seconds: float) -> None:
    for _ in range(steps):
        clock.start_step()
        now[0] += seconds / steps
        clock.end_step(num_samples=10)
    clock.close_window()


def test_the_first_window_counts_as_time_and_not_as_speed(now: list[float]) -> None:
    clock = Clock()
    window(clock, now, steps=2, seconds=50.0)
    assert clock.throughput() == {"samples_per_s": 20 / 50, "step_ms_median": 25_000.0}, "it is all there is"
    for seconds in (1.0, 2.0, 3.0):
        window(clock, now, steps=4, seconds=seconds)
    assert clock.throughput() == {
        "samples_per_s": pytest.approx(120 / 6),
        "step_ms_median": pytest.approx(500),
    }


def test_time_between_windows_is_not_training(now: list[float]) -> None:
    """Red when a window stays open over an evaluation."""
    clock = Clock()
    for _ in range(3):
        window(clock, now, steps=1, seconds=1.0)
        now[0] += 1000.0
    clock.close_window()
    assert clock.throughput()["step_ms_median"] == pytest.approx(1000.0)


def test_nothing_timed_is_no_speed() -> None:
    clock = Clock()
    clock.close_window()
    assert clock.throughput() == {"samples_per_s": None, "step_ms_median": None}
