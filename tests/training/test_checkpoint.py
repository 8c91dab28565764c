"""Checkpoints are whole or absent, few, and harmless to load."""

import pickle
from pathlib import Path

import pytest
import torch

from ampx.training.checkpoint import Checkpoints, find_checkpoint, load_checkpoint


def state(value: float) -> dict[str, object]:
    return {"model": {"weight": torch.full((4,), value)}, "note": value}


def test_the_newest_two_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state(step))
        if step == 2:
            checkpoints.mark_best(step, "accuracy", 0.9)
    assert checkpoints.steps() == [3, 4]
    assert load_checkpoint(tmp_path / "best.pt")["note"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.json", "best.pt", "step_00000003.pt", "step_00000004.pt",
    ]  # fmt: skip


def test_a_truncated_newest_falls_back_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    path = checkpoints.save(2, state(2))
    path.write_bytes(path.read_bytes()[:-40])
    unreadable: list[Path] = []
    loaded = checkpoints.load_newest(lambda bad, _error: unreadable.append(bad))
    assert loaded is not None
    assert loaded["note"] == 1
    assert unreadable == [path]


def test_a_failed_write_leaves_the_old_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    """Write in place and the newest is lost with the attempt."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        checkpoints.save(2, {"model": lambda: None})
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001.pt"]


def test_a_full_disk_is_told_in_words_and_costs_no_earlier_checkpoint(small_disk: Path) -> None:
    """torch's zip writer reports `unexpected pos`; the reason lies one exception deeper."""
    checkpoints = Checkpoints(small_disk)
    checkpoints.save(1, state(1))
    with pytest.raises(ValueError, match="No space left on device"):
        checkpoints.save(2, {"model": {"weight": torch.zeros(100_000)}})
    assert [path.name for path in small_disk.iterdir()] == ["step_00000001.pt"]
    assert load_checkpoint(checkpoints.path(1))["note"] == 1


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (marker,)  # type: ignore[return-value]

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="cannot be read"):
        load_checkpoint(tmp_path / "evil.pt")
    assert not marker.exists()


def test_a_trial_means_its_best_checkpoint_else_its_newest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no checkpoint"):
        find_checkpoint(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    first = checkpoints.save(1, state(1))
    checkpoints.save(2, state(2))
    assert find_checkpoint(tmp_path).name == "step_00000002.pt"
    checkpoints.mark_best(1, "accuracy", 1.0)
    assert find_checkpoint(tmp_path).name == "best.pt"
    assert find_checkpoint(first) == first
