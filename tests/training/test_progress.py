"""Counts and metrics of a trial: what is best, what is stale, and that all of it survives a checkpoint."""

import json

import pytest

from ampx.training.progress import Mode, Progress


def test_best_and_final_follow_each_metric_its_own_way() -> None:
    progress = Progress(step=5)
    modes: dict[str, Mode] = {"loss": "min"}
    assert progress.note({"loss": 2.0, "accuracy": 0.5}, modes) == {"loss", "accuracy"}
    assert progress.note({"loss": 3.0, "accuracy": 0.6}, modes) == {"accuracy"}
    assert progress.note({"loss": 1.0, "accuracy": 0.4}, modes) == {"loss"}
    assert progress.metrics == {
        "loss": {"final": 1.0, "best": 1.0},
        "accuracy": {"final": 0.4, "best": 0.6},
    }
    assert progress.evaluated_at == 5


@pytest.mark.parametrize("mode", ["min", "max"])
def test_anything_is_better_than_nan_and_nan_is_better_than_nothing(mode: Mode) -> None:
    """Red when the values are compared at once: nothing is above or below NaN, which then stays the best."""
    progress = Progress()
    progress.note({"loss": float("nan")}, {"loss": mode})
    assert progress.note({"loss": 7.0}, {"loss": mode}) == {"loss"}
    assert progress.note({"loss": float("nan")}, {"loss": mode}) == set()
    assert progress.metrics["loss"]["best"] == 7.0


@pytest.mark.parametrize(
    ("mode", "values"), [("max", [1, 2, 2.5, 2, 3.6]), ("min", [-1, -2, -2.5, -2, -3.6])]
)
def test_an_evaluation_is_stale_unless_it_gains_more_than_min_delta(mode: Mode, values: list[float]) -> None:
    """Red when small gains move the bar: many of them would then count as standing still."""
    progress = Progress()
    stale = []
    for value in values:
        progress.note_watched(value, mode, min_delta=1.0)
        stale.append(progress.stale_evaluations)
    assert stale == [0, 1, 0, 1, 0]


def test_a_nan_is_stale() -> None:
    progress = Progress()
    for value in (0.5, float("nan"), float("nan")):
        progress.note_watched(value, "max", min_delta=0)
    assert progress.stale_evaluations == 2


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_nan_at_the_start_is_beaten_by_any_number(mode: Mode) -> None:
    """Red when NaN becomes the bar: no number is above or below it, and patience runs out."""
    progress = Progress()
    for value in (float("nan"), 0.5):
        progress.note_watched(value, mode, min_delta=0)
    assert (progress.watched_best, progress.stale_evaluations) == (0.5, 0)


def test_every_field_survives_json_and_comes_back() -> None:
    progress = Progress(3, 48, 1.5, 2, 1, 0.25, {"loss": {"final": 1.0, "best": 0.5}})
    other = Progress()
    other.load_state_dict(json.loads(json.dumps(progress.state_dict())))
    assert other == progress
