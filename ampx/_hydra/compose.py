"""From argv to requests: Hydra composes and is then done, ampx validates what it composed."""

import logging
import os
import re
import sys
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import hydra
from hydra import initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ampx._hydra.diagnose import diagnose
from ampx._hydra.resume import names_trial, resume_requests
from ampx.config.errors import ConfigError
from ampx.config.load import Request, resolve, validate
from ampx.config.rules import sweep_problem
from ampx.config.secrets import secrets_unread
from ampx.targets import check_targets

_HONOURED = ("hydra.searchpath", "hydra.sweeper", "hydra.help", "hydra.mode", "hydra/sweeper", "hydra/help")
_OWN_PLUGINS = {  # what ampx works with, and what to type instead of another
    "hydra/launcher": ("basic", "launcher=<option>"),
    "hydra/sweeper": ("ampx", "-m with lists of values"),
}


def compose_requests(arguments: Sequence[str], conf_dir: Path) -> list[Request]:
    """The trials that are asked for, all of them valid; none where something is only to be shown."""
    parser = get_args_parser()
    parser.prog = "ampx run"
    options = parser.parse_intermixed_args(arguments)
    overrides: list[str] = options.overrides
    flags = [argument for argument in arguments if argument not in overrides]
    with _explained(overrides, conf_dir, is_sweep=options.multirun):
        _refuse_ignored(overrides)
        if any(map(names_trial, overrides)):
            requests = resume_requests(overrides, flags, conf_dir)
        elif flags:
            requests = _compose_with_flags([*overrides, *flags], conf_dir)
        else:
            requests = _compose_one(overrides, conf_dir)
    configs = [request.config for request in requests]
    if problem := sweep_problem(configs):
        raise ConfigError(problem)
    check_targets(configs)
    return requests


class Collector:
    """The task function: Hydra calls it with each config that it composed."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, config: DictConfig) -> None:
        composed = HydraConfig.get()
        _refuse_other_plugins(composed.runtime.choices)
        with open_dict(config):
            config.pop("hydra", None)
        overrides = tuple(cast(list[str], OmegaConf.to_container(composed.overrides.task)))
        values = resolve(config)
        if values.get("resume") is not None:
            way_out = "type resume=<trial> as an argument"
            raise ConfigError(f"resume={values['resume']}: no file may say so; {way_out}")
        is_sweep = composed.mode is RunMode.MULTIRUN
        self.requests.append(Request(validate(values, overrides), overrides, is_sweep=is_sweep))


def _compose_one(overrides: list[str], conf_dir: Path) -> list[Request]:
    """One trial, without Hydra's own main, which composes it twice."""
    collector = Collector()
    with initialize_config_dir(str(conf_dir), job_name="ampx", version_base="1.3"):
        config = hydra.compose("config", overrides, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        is_sweep = config.hydra.mode is RunMode.MULTIRUN  # a preset may say so
        if not is_sweep:
            collector(config)
    return _compose_with_flags(overrides, conf_dir) if is_sweep else collector.requests


def _compose_with_flags(arguments: list[str], conf_dir: Path) -> list[Request]:
    """A sweep, or one of Hydra's flags that show something."""
    collector = Collector()
    application = hydra.main(version_base="1.3", config_path=str(conf_dir), config_name="config")
    with _command_line(arguments), secrets_unread():  # `--cfg job --resolve` prints what it resolves
        application(collector)()
    return collector.requests


@contextmanager
def _command_line(arguments: list[str]) -> Generator[None]:
    """Hydra reads `sys.argv`, exits at an error unless told otherwise, and completes a one-word command."""
    environment = {"HYDRA_FULL_ERROR": "1"}
    if "COMP_LINE" in os.environ:
        environment["COMP_LINE"] = re.sub(r"^\s*\S*ampx\s+run\b", "ampx", os.environ["COMP_LINE"])
    before = sys.argv, dict(os.environ), logging.raiseExceptions
    sys.argv = ["ampx", *arguments]
    os.environ.update(environment)
    logging.raiseExceptions = False  # `--info | head` is no reason for a traceback a line
    try:
        yield
    finally:
        sys.argv, _, logging.raiseExceptions = before
        os.environ.clear()
        os.environ.update(before[1])


@contextmanager
def _explained(overrides: list[str], conf_dir: Path, *, is_sweep: bool) -> Generator[None]:
    """What Hydra or OmegaConf raise within leaves as ConfigError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*is not available", category=UserWarning)
            yield
    except ConfigError:
        raise
    except UserWarning as warning:
        path = re.sub(r".*path=(.*) is not available.*", r"\1", str(warning), flags=re.DOTALL)
        text = f"hydra.searchpath=[{path}]: is no directory; create it, or leave it out"
        raise ConfigError(text) from warning
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        with initialize_config_dir(str(conf_dir), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            raise diagnose(error, overrides, loader, is_sweep=is_sweep) from error


def _refuse_ignored(overrides: list[str]) -> None:
    for text in overrides:
        key = text.partition("=")[0].lstrip("+~")
        if key == "hydra/launcher":
            raise ConfigError(f"{text}: ampx starts trials itself; type launcher={text.partition('=')[2]}")
        if key.startswith(("hydra.", "hydra/")) and not key.startswith(_HONOURED):
            raise ConfigError(f"{text}: ampx uses Hydra to compose and for nothing else; leave it out")


def _refuse_other_plugins(choices: Mapping[str, Any]) -> None:
    for group, (own, way_out) in _OWN_PLUGINS.items():
        if choices.get(group) != own:
            raise ConfigError(f"{group}={choices.get(group)}: has no effect in ampx; use {way_out}")
