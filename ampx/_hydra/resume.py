"""`resume=<trial>`: the trial's stored config instead of a composed one, continued in place or forked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict

from ampx._hydra.diagnose import groups_of, mistakes_in
from ampx._hydra.sweep import Sweep
from ampx.config.errors import ConfigError
from ampx.config.load import Request, resolve, stored_values, validate
from ampx.config.mistakes import Composed
from ampx.trial import Trial

_REPLACEABLE = ("launcher", "tracker", "observe")  # they change no numbers
_SWEEP_FLAGS = ("-m", "--multirun")


def names_trial(override: str) -> bool:
    """Whether the override is `resume=<trial>`."""
    return override.startswith("resume=") and override != "resume=null"


def resume_requests(overrides: Sequence[str], flags: Sequence[str], conf_dir: Path) -> list[Request]:
    """The trial to continue, where only launcher, tracker or observe are replaced; else forks of it."""
    if other_flags := [flag for flag in flags if flag not in _SWEEP_FLAGS]:
        way_out = "the trial's config.yaml has its settings; leave one of the two out"
        raise ConfigError(f"{other_flags[0]} with resume: {way_out}")
    hydra_overrides = [text for text in overrides if text.startswith("hydra.")]
    own = [text for text in overrides if text not in hydra_overrides]
    with initialize_config_dir(str(conf_dir), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        groups = groups_of(loader, hydra_overrides)
        trials = Sweep(loader, own, hydra_overrides).trials if flags else [tuple(own)]
        parser = OverridesParser.create(loader)
        parsed = [parser.parse_overrides(list(trial)) for trial in trials]
    resumes = [_Resume.of(trial, groups) for trial in parsed]
    return [resume.request(hydra_overrides, conf_dir, is_sweep=bool(flags)) for resume in resumes]


@dataclass(frozen=True)
class _Resume:
    """A trial's directory, and the overrides that go on top of its stored config."""

    path: Path
    options: list[Override]  # each chooses an option of a replaceable group
    values: list[Override]

    @classmethod
    def of(cls, overrides: Sequence[Override], groups: dict[str, list[str]]) -> "_Resume":
        path, others = Path(), list[Override]()
        for override in overrides:
            if override.key_or_group == "resume":
                path = Path(str(override.value())).expanduser().absolute()
            else:
                others.append(override)
        options = [o for o in others if o.key_or_group in groups and not isinstance(o.value(), dict)]
        for option in options:
            if option.key_or_group not in _REPLACEABLE:
                raise ConfigError(
                    f"{option.input_line} with resume: a fork keeps the trial's options; "
                    f"change values ({option.key_or_group}.<setting>=<value>), or start a new trial"
                )
        return cls(path, options, [o for o in others if o not in options])

    def request(self, hydra_overrides: list[str], conf_dir: Path, *, is_sweep: bool) -> Request:
        stored = self._compose_stored()
        if self.options:
            chosen = self._compose_chosen(hydra_overrides, conf_dir)
            with open_dict(stored):
                stored.update({o.key_or_group: chosen[o.key_or_group] for o in self.options})
        values = resolve(stored)
        is_fork = any(_group(value) not in _REPLACEABLE for value in self.values)
        if is_fork:
            values["resume"] = str(self.path)
        typed = (f"resume={self.path}", *map(_text, self.options), *map(_text, self.values))
        return Request(validate(values, typed), typed, resume=self.path, is_fork=is_fork, is_sweep=is_sweep)

    def _compose_stored(self) -> DictConfig:
        """The stored config is a primary config to Hydra as good as conf/config.yaml."""
        values = stored_values(_existing(self.path).config_path)
        overrides = [value for value in self.values if not self._goes_with_option(value)]
        try:
            with initialize_config_dir(str(self.path), version_base="1.3"):
                return hydra.compose("config", list(map(_text, overrides)))
        except HydraException as error:
            raise ConfigError(*mistakes_in(overrides, Composed({}, values)) or [str(error)]) from error

    def _compose_chosen(self, hydra_overrides: list[str], conf_dir: Path) -> DictConfig:
        values = filter(self._goes_with_option, self.values)
        with initialize_config_dir(str(conf_dir), version_base="1.3"):
            return hydra.compose("config", [*hydra_overrides, *map(_text, self.options), *map(_text, values)])

    def _goes_with_option(self, value: Override) -> bool:
        return _group(value) in [option.key_or_group for option in self.options]


def _existing(path: Path) -> Trial:
    try:
        return Trial.open(path)
    except ValueError as error:
        raise ConfigError(f"resume={error}") from error


def _group(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _text(override: Override) -> str:
    return str(override.input_line)
