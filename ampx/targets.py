"""Checks the user's own classes before anything is written: import, argument names, nearest name.

That runs their code, torch and all, so it happens in a process of its own: `python -m ampx.targets`
reads the targets as JSON and answers with the problems. A config without targets costs nothing. The
current directory is on that process's path, so `my_pkg` is found there, as the worker will find it.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ampx.build import check_target
from ampx.config.errors import ConfigError
from ampx.config.experiment import ExperimentConfig
from ampx.config.fields import TargetSettings

_GIVEN_LATER = ("optimizer", "schedule")  # the loop adds parameters, or an optimizer


@dataclass(frozen=True)
class Target:
    """A class path and its arguments, at `setting` of the config."""

    setting: str
    path: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        """Equal for equal targets."""
        return json.dumps(asdict(self), sort_keys=True, default=str)


def targets_of(config: ExperimentConfig) -> Iterator[Target]:
    """Every class of the user's own that the config names."""
    for name in type(config).model_fields:
        settings = getattr(config, name)
        if isinstance(settings, TargetSettings):
            partial = {"_partial_": True} if name in _GIVEN_LATER else {}
            yield Target(name, settings.target, settings.arguments | partial)
    for index, observer in enumerate(config.tracker.observers):
        yield Target(f"tracker.observers.{index}", observer.target, observer.arguments)


def check_targets(configs: Iterable[ExperimentConfig]) -> None:
    """Raises ConfigError with the problems of all targets; each distinct one is checked once."""
    distinct = list(dict.fromkeys(target.text for config in configs for target in targets_of(config)))
    problems = _ask_subprocess(distinct) if distinct else []
    if problems:
        raise ConfigError(*problems)


def _ask_subprocess(targets: list[str]) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-m", "ampx.targets"],
        input=json.dumps(targets),
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0 or not answer.stdout:
        paths = ", ".join(json.loads(target)["path"] for target in targets)
        last_words = answer.stderr.strip() or f"exit code {answer.returncode}"
        return [f"_target_={paths}: ends the process that imports it; mend its module: {last_words}"]
    return json.loads(answer.stdout)


def _problem(target: Target) -> str | None:
    try:
        check_target(target.path, target.arguments, setting=target.setting)
    except ValueError as error:
        return str(error)
    return None


def _answer() -> None:
    targets = [Target(**json.loads(text)) for text in json.load(sys.stdin)]
    with contextlib.redirect_stdout(sys.stderr):  # what a module prints on import is no part of the answer
        problems = [_problem(target) for target in targets]
    json.dump([problem for problem in problems if problem], sys.stdout)


if __name__ == "__main__":
    _answer()
