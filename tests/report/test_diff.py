import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ampx.report.diff import diff_trials
from ampx.trial import Trial

Printed = Callable[..., str]


@pytest.fixture
def other(tmp_path: Path, completed: Trial) -> Trial:
    """A trial like `completed` with two settings, an environment and an outcome changed."""
    config = completed.read_config_text().replace("300", "500").replace("16}", "16, depth: 3}")
    other = Trial.create(tmp_path / "other", config_text=config, overrides=[])
    other.set_status("running")
    manifest = completed.read_json("manifest.json") or {}
    other.write_json("manifest.json", manifest | {"environment": {"torch": "2.11.0", "device": "cpu"}})
    other.append_lines("steps.jsonl", ['{"step": 0, "optimizer": "main", "applied": true, "scale": 8.0}'])
    other.set_status("failed", reason="RuntimeError: no")
    return other


def test_only_settings_and_facts_that_differ_are_shown(
    completed: Trial, other: Trial, printed: Printed
) -> None:
    text = printed(diff_trials, completed, other)
    assert re.search(r"^A  \S+/sweep/trial\nB  \S+/other$", text, re.MULTILINE)
    for row in (
        r"scaler\.growth_interval  300       500",
        r"model\.depth +\(absent\)  3",
        r"environment\.torch +2\.14\.1  2\.11\.0",
        r"environment\.threads +2 +\(absent\)",
    ):
        assert re.search(rf"^{row} *$", text, re.MULTILINE), row
    assert "init_scale" not in text
    assert "precision" not in text


def test_outcomes_stand_side_by_side_with_or_without_a_result(
    completed: Trial, other: Trial, printed: Printed
) -> None:
    text = printed(diff_trials, completed, other)
    for row in (
        r"state +completed +failed",
        r"reason +- +RuntimeError: no",
        r"metrics\.accuracy\.best +0\.978 +\(absent\)",
        r"steps\.attempted +6 +1",
        r"scale\.last +32768 +8",
        r"wall_s +1 min 23 s +\(absent\)",
    ):
        assert re.search(rf"^{row} *$", text, re.MULTILINE), row


def test_a_trial_does_not_differ_from_itself(completed: Trial, printed: Printed) -> None:
    text = printed(diff_trials, completed, completed)
    assert "settings: no difference" in text
    assert "manifest: no difference" in text


def test_damage_is_named(completed: Trial, other: Trial, printed: Printed) -> None:
    (other.path / "manifest.json").write_text("{")
    assert "damaged: " in printed(diff_trials, completed, other)
