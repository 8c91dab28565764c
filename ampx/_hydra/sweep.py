"""The trials of a sweep: every combination of the values typed, each composed as Hydra would compose it."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ampx._hydra.diagnose import diagnose
from ampx.config.errors import ConfigError

Trial = tuple[str, ...]  # its overrides, as they could be typed


class Sweep:
    """What `overrides` span; `hydra_overrides` say where to look for groups."""

    def __init__(
        self, loader: ConfigLoader, overrides: Sequence[str], hydra_overrides: Sequence[str]
    ) -> None:
        self.loader = loader
        self.hydra_overrides = list(hydra_overrides)
        self._parse = cache(OverridesParser.create(loader).parse_override)
        typed = map(self._parse, overrides)
        choices = {override.get_key_element(): self._choices(override) for override in typed}
        self.trials: list[Trial] = list(dict.fromkeys(itertools.product(*choices.values())))

    def compose(self, master: DictConfig) -> Iterator[DictConfig]:
        """Each trial's config; meanwhile `HydraConfig` holds what Hydra has to say about it.

        Hydra sets values last, on what the chosen group options gave. So each set of options is composed
        once and the values are set on a copy, which is many times quicker than composing every trial.
        """
        groups = self._options("", ObjectType.GROUP)
        compose_options = cache(partial(self._compose_options, master))
        for trial in self.trials:
            overrides = [self._parse(text) for text in trial]
            values = [override for override in overrides if not _chooses_option(override, groups)]
            options = tuple(str(override.input_line) for override in overrides if override not in values)
            try:
                composed, hydra = compose_options(options)
                config = copy.deepcopy(composed)
                ConfigLoaderImpl._apply_overrides_to_config(values, config)
            except HydraException as error:
                raise diagnose(error, [*self.hydra_overrides, *trial], self.loader, is_sweep=False) from error
            _say_what_was_typed(hydra, overrides)
            OmegaConf.copy_cache(from_config=master, to_config=config)
            yield config
            OmegaConf.copy_cache(from_config=config, to_config=master)  # `${now:}` is one time for all

    def _compose_options(self, master: DictConfig, options: Trial) -> tuple[DictConfig, Any]:
        """The config that the options give, and apart from it Hydra's own section."""
        composed = self.loader.load_sweep_config(master, list(options))
        HydraConfig.instance().set_config(composed)
        with open_dict(composed):
            del composed["hydra"]
        return composed, HydraConfig.instance().cfg

    def _choices(self, override: Override) -> list[str]:
        typed = str(override.input_line)
        if not override.is_sweep_override():
            return [typed]
        key = override.get_key_element()
        if override.is_interval_sweep():
            way_out = f"list them, as {key}=1,2,3 or {key}=range(1,4)"
            raise ConfigError(f"{typed}: an interval has no values to go through; {way_out}")
        pattern = override.value()
        if isinstance(pattern, Glob):
            return [f"{key}={option}" for option in self._matches(pattern, override)]
        return [f"{key}={value}" for value in override.sweep_string_iterator()]

    def _matches(self, pattern: Glob, override: Override) -> list[str]:
        """The options that a glob takes; `none` is what a group is without any."""
        options = self._options(override.key_or_group, ObjectType.CONFIG)
        matches = [option for option in pattern.filter(options) if option != "none"]
        if not matches:
            known = ", ".join(options) or "no options: it is not a group"
            raise ConfigError(f"{override.input_line}: matches nothing; {override.key_or_group} has {known}")
        return matches

    def _options(self, group: str, wanted: ObjectType) -> list[str]:
        return self.loader.get_group_options(group, wanted, "config", self.hydra_overrides)


def _chooses_option(override: Override, groups: Sequence[str]) -> bool:
    """As Hydra tells a group's option from a value."""
    is_group = "/" in override.key_or_group or override.key_or_group in groups
    return is_group and not isinstance(override.value(), dict)


def _say_what_was_typed(config: Any, overrides: list[Override]) -> None:
    """What `${hydra:overrides.task}` and `${hydra:job.override_dirname}` read."""
    with read_write(config.hydra):
        config.hydra.overrides.task = [override.input_line for override in overrides]
        style = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(overrides, **style)
    HydraConfig.instance().cfg = config
