"""A user's own classes are imported and asked for their arguments, in a process of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampx.config.errors import ConfigError
from ampx.config.experiment import ExperimentConfig
from ampx.targets import check_targets, targets_of

Build = Callable[..., ExperimentConfig]


@pytest.fixture
def my_pkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the current directory that says how often it was imported."""
    path = tmp_path / "my_pkg.py"
    path.write_text(
        "import pathlib, sys\n"
        "print('noise on stdout')\n"
        "with pathlib.Path('imports').open('a') as file: file.write('x')\n"
        "class Net:\n    def __init__(self, width: int, depth: int = 1): ...\n"
        "def optimizer(params, lr): ...\n"
        "class Observer:\n    def on_records(self, records): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    return path


def test_right_targets_pass_and_are_imported_once_for_all_trials(experiment: Build, my_pkg: Path) -> None:
    custom = [
        "model=custom",
        "model._target_=my_pkg.Net",
        "optimizer=custom",
        "optimizer._target_=my_pkg.optimizer",
    ]
    configs = [
        experiment(*custom, f"+model.width={width}", "+optimizer.lr=1", "tracker.observers=[my_pkg.Observer]")
        for width in (1, 2)
    ]
    assert [target.setting for target in targets_of(configs[0])] == [
        "model",
        "optimizer",
        "tracker.observers.0",
    ]
    check_targets(configs)
    assert (my_pkg.parent / "imports").read_text() == "x"


def test_a_config_without_targets_starts_no_process(
    experiment: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    check_targets([experiment()])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model._target_=no_such_pkg.Net"],
            "model._target_=no_such_pkg.Net: there is no module 'no_such_pkg'",
        ),
        (
            ["model._target_=my_pkg.Nett"],
            "_target_=my_pkg.Nett: my_pkg has no 'Nett'; did you mean Net?",
        ),
        (["model._target_=my_pkg.Net", "+model.widht=3"], "takes no argument 'widht'; did you mean width?"),
        (["model._target_=my_pkg.Net"], "needs a value for width; add +model.width="),
    ],
)
@pytest.mark.usefixtures("my_pkg")
def test_wrong_targets_are_told_before_anything_is_written(
    overrides: list[str], message: str, experiment: Build
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_targets([experiment("model=custom", *overrides)])
    assert message in str(refused.value)


@pytest.mark.parametrize("ending", ["import os; os._exit(3)", "raise SystemExit(0)"])
def test_a_module_that_ends_the_process_is_named(ending: str, experiment: Build, my_pkg: Path) -> None:
    my_pkg.write_text(ending)
    with pytest.raises(ConfigError, match=r"_target_=my_pkg.Net: ends the process that imports it"):
        check_targets([experiment("model=custom", "model._target_=my_pkg.Net")])
