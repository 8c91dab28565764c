from pathlib import Path

import pytest

from ampx.report.find import find_one, find_trials, short
from ampx.trial import Trial


def test_a_trial_the_folder_of_one_and_the_folder_of_several_are_told_apart(tmp_path: Path) -> None:
    trials = [Trial.create(tmp_path / "x" / name, config_text="", overrides=[]) for name in "ab"]
    alone = Trial.create(tmp_path / "y" / "c", config_text="", overrides=[])
    assert find_trials(trials[0].path) == [trials[0]]
    assert find_trials(tmp_path / "x") == trials
    assert find_one(tmp_path / "y") == alone
    with pytest.raises(ValueError, match="x: holds 2 trials; give the path of one: a, b"):
        find_one(tmp_path / "x")


def test_a_folder_without_trials_points_to_those_below(tmp_path: Path) -> None:
    Trial.create(tmp_path / "out" / "x" / "a", config_text="", overrides=[])
    with pytest.raises(ValueError, match=r"out: is no trial and holds none directly; try .*out/x$"):
        find_trials(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: is no trial: it has no config\.yaml"):
        find_trials(tmp_path / "empty")
    with pytest.raises(ValueError, match="nowhere: is no trial: there is no such folder"):
        find_trials(tmp_path / "nowhere")


def test_paths_below_here_are_shown_as_one_would_type_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short(tmp_path / "a" / "b") == Path("a/b")
    assert short(Path("/elsewhere/a")) == Path("/elsewhere/a")
    assert short(tmp_path) == tmp_path
