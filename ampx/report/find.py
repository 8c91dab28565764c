"""Which trials a path on the command line means, and what they say, however damaged they are."""

from pathlib import Path
from typing import Any

import yaml

from ampx.records import Record
from ampx.status import Status, to_utc
from ampx.trial import Trial, trials_in


def find_trials(path: Path) -> list[Trial]:
    """The trial at `path`, or all that lie directly in it; ValueError where there is neither."""
    try:
        return [Trial.open(path)]
    except ValueError:
        if found := trials_in(path):
            return found
        if deeper := _first_below(path):
            raise ValueError(f"{path}: is no trial and holds none directly; try {deeper}") from None
        raise


def find_one(path: Path) -> Trial:
    """The trial at `path` or the only one in it."""
    trials = find_trials(path)
    if len(trials) > 1:
        names = ", ".join(trial.path.name for trial in trials[:5])
        raise ValueError(f"{path}: holds {len(trials)} trials; give the path of one: {names}")
    return trials[0]


def short(path: Path) -> Path:
    """`path` as one would type it from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def read_or_none(trial: Trial, name: str, troubles: list[str]) -> Record:
    """A JSON file of the trial, empty where there is none; damage is added to `troubles`."""
    try:
        return trial.read_json(name) or {}
    except ValueError as error:
        troubles.append(str(error))
        return {}


def read_result(trial: Trial, status: Status, troubles: list[str]) -> Record:
    """The result of the attempt that `status` tells of: an earlier attempt's does not count."""
    path = trial.path / "result.json"
    if status.started and path.exists():
        written = to_utc(path.stat().st_mtime + 0.02)  # file times lag by a tick of the kernel's clock
        if written < status.started:
            return {}
    return read_or_none(trial, path.name, troubles)


def read_config(trial: Trial, troubles: list[str]) -> dict[str, Any]:
    """The config as plain data; damage is added to `troubles`."""
    try:
        config = yaml.load(trial.read_config_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, OSError, ValueError) as error:
        troubles.append(f"{trial.config_path}: cannot be read ({error})")
        return {}
    return config if isinstance(config, dict) else {}


def _first_below(path: Path) -> Path | None:
    folders = sorted(path.iterdir()) if path.is_dir() else []
    return next((folder for folder in folders if trials_in(folder)), None)
