"""Between text and a validated config: what a trial directory's `config.yaml` holds, and how it is read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from ampx.config.errors import ConfigError, as_typed
from ampx.config.experiment import ExperimentConfig
from ampx.config.explain import explain
from ampx.config.rules import broken_rules
from ampx.config.secrets import secrets_unread


@dataclass(frozen=True)
class Request:
    """One trial that the user asked for.

    `resume` is the trial directory to continue in place, or, when `is_fork`, the one whose state the new
    trial starts from (then `config.resume` names it too, and so the new trial's `config.yaml`).
    """

    config: ExperimentConfig
    overrides: tuple[str, ...]
    resume: Path | None = None
    is_fork: bool = False
    is_sweep: bool = False


def resolve(composed: DictConfig) -> dict[str, Any]:
    """Plain values, every interpolation read but those of secrets."""
    try:
        with secrets_unread():
            container = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}=???: has no default; add {error.full_key}=<value>") from error
    except InterpolationResolutionError as error:
        raise ConfigError(_unresolved(composed, error)) from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def validate(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The config of these values; `overrides` are what the user typed, for the words of errors."""
    values = _with_typed_limit(values, overrides)
    try:
        config = ExperimentConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*explain(error, ExperimentConfig, values, overrides)) from error
    problems = broken_rules(config)
    if problems:
        raise ConfigError(*problems)
    return config


def _with_typed_limit(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """Whoever types how many steps (or epochs) to train does not mean the default number of the other."""
    typed = {text.lstrip("+").partition("=")[0]: text.partition("=")[2] for text in overrides}
    limits = {"train.max_steps": "max_epochs", "train.max_epochs": "max_steps"}
    given = [key for key in limits if typed.get(key, "null") != "null"]
    train = values.get("train")
    if len(given) != 1 or not isinstance(train, Mapping):
        return values
    other = limits[given[0]]
    if f"train.{other}" in typed:
        return values
    return {**values, "train": {**train, other: None}}


def load_config(path: Path) -> ExperimentConfig:
    """The config that a trial's `config.yaml` holds."""
    return validate(stored_values(path))


def stored_values(path: Path) -> dict[str, Any]:
    """What `config.yaml` says, secrets unread; OmegaConf's loader knows that 1e-3 is a number."""
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; restore it") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no settings; restore it")
    return {str(key): value for key, value in values.items()}


def dump_config(config: ExperimentConfig) -> str:
    """The text of `config.yaml`, which `load_config` reads back as an equal config."""
    sections = config.model_dump(by_alias=True).items()
    return OmegaConf.to_yaml(OmegaConf.create({name: _kind_first(section) for name, section in sections}))


def reveal(config: ExperimentConfig) -> ExperimentConfig:
    """The config with its secrets read from this process's environment; never write it anywhere."""
    values = OmegaConf.create(config.model_dump(by_alias=True))
    try:
        container = OmegaConf.to_container(values, resolve=True)
    except InterpolationResolutionError as error:
        raise ConfigError(_unresolved(values, error)) from error
    return ExperimentConfig.model_validate(container)


def _kind_first(section: Any) -> Any:
    """As a person reads it: first which option of the group this is."""
    has_kind = isinstance(section, dict) and "kind" in section
    return {"kind": section["kind"], **section} if has_kind else section


def _unresolved(composed: DictConfig, error: InterpolationResolutionError) -> str:
    """`name=${oc.env:HOME_}: Environment variable 'HOME_' not found; …`"""
    key = str(error.full_key)
    text: Any = OmegaConf.to_container(composed)
    for step in filter(None, re.split(r"[.\[\]]", key)):
        text = text[int(step) if isinstance(text, list) else step]
    reason = re.sub(r".* while resolving interpolation: ", "", str(error).splitlines()[0]).strip('"')
    way_out = "set it" if "Environment variable" in reason else "correct what stands in ${}"
    return f"{as_typed(key, text)}: {reason}; {way_out}"
