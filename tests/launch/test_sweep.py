"""`sweep.json`: what a named directory holds, added to and never rewritten."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampx.config.experiment import ExperimentConfig
from ampx.config.load import Request, dump_config
from ampx.launch.sweep import read_sweep, record_sweep
from ampx.trial import Trial


@pytest.fixture
def made(tmp_path: Path, experiment: Callable[..., ExperimentConfig]) -> Callable[..., tuple[Trial, Request]]:
    """`made("a", "seed=1")`: a trial of this name in the sweep, and the request it came from."""

    def make(name: str, *overrides: str) -> tuple[Trial, Request]:
        config = experiment(*overrides)
        path = tmp_path / "mine" / name
        trial = (
            Trial.open(path)
            if path.exists()
            else Trial.create(path, config_text=dump_config(config), overrides=overrides)
        )
        return trial, Request(config=config, overrides=overrides, resume=None)

    return make  # fmt: skip


Made = Callable[..., tuple[Trial, Request]]


def record(root: Path, *pairs: tuple[Trial, Request]) -> dict[str, list[str]]:
    trials, requests = zip(*pairs, strict=True)
    record_sweep(root, trials, requests)
    sweep = read_sweep(root)
    assert sweep is not None
    return sweep["trials"]


def test_a_directory_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is None


def test_it_names_each_trial_with_what_was_typed(tmp_path: Path, made: Made) -> None:
    root = tmp_path / "mine"
    trials = record(root, made("a", "seed=1", "optimizer.lr=1e-2"), made("b", "seed=2"))
    assert trials == {"a": ["seed=1", "optimizer.lr=1e-2"], "b": ["seed=2"]}
    sweep = read_sweep(root)
    assert sweep is not None
    assert sweep["name"] == "mine"


def test_a_later_sweep_adds_and_keeps_what_stands_there(tmp_path: Path, made: Made) -> None:
    """BUGS 49. Red when the manifest is written anew: the first sweep's trials are then nobody's."""
    root = tmp_path / "mine"
    record(root, made("a", "seed=1"), made("b", "seed=2"))
    first = read_sweep(root)
    trials = record(root, made("b", "seed=0x2"), made("c", "seed=3"))
    second = read_sweep(root)
    assert trials == {"a": ["seed=1"], "b": ["seed=2"], "c": ["seed=3"]}
    assert first is not None
    assert second is not None
    assert first["created"] == second["created"]
