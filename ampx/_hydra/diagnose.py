"""What Hydra refused, in ampx's words; in Hydra's own where ampx has none."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from yaml import YAMLError

from ampx.config.errors import ConfigError
from ampx.config.mistakes import Composed, Override, bare_word

_MARKS = {OverrideType.ADD: "+", OverrideType.FORCE_ADD: "++", OverrideType.DEL: "~"}


def diagnose(
    error: Exception, overrides: Sequence[str], loader: ConfigLoader, *, is_sweep: bool
) -> ConfigError:
    """The error to show for `error`, which composing `overrides` raised."""
    groups = groups_of(loader, overrides)
    parsed, problems = _parse(overrides, loader, groups)
    if is_sweep:  # what its values refer to shows in each trial
        parsed = [override for override in parsed if not override.is_sweep_override()]
    values = _compose_options(parsed, loader, groups)
    if values is None:
        return ConfigError(*problems, _condense(error))
    composed = Composed(groups, values)
    return ConfigError(*(problems + mistakes_in(parsed, composed) or [_condense(error)]))


def mistakes_in(overrides: Iterable[HydraOverride], composed: Composed) -> list[str]:
    """A line for each override that is no single value, or refers to nothing in `composed`."""
    own = [override for override in overrides if not override.is_hydra_override()]
    return [mistake for override in own if (mistake := _mistake_in(override, composed))]


def groups_of(loader: ConfigLoader, overrides: Iterable[str]) -> dict[str, list[str]]:
    """The groups with their options, in conf and wherever else the overrides say to look."""
    search_path = [text for text in overrides if text.startswith("hydra.searchpath=")]

    def options(group: str, wanted: ObjectType) -> list[str]:
        return loader.get_group_options(group, wanted, "config", search_path)

    names = [name for name in options("", ObjectType.GROUP) if name != "hydra"]
    return {name: options(name, ObjectType.CONFIG) for name in names}


def _parse(
    overrides: Iterable[str], loader: ConfigLoader, groups: dict[str, list[str]]
) -> tuple[list[HydraOverride], list[str]]:
    """The overrides that can be read, and what is wrong with the others."""
    parser = OverridesParser.create(loader)
    parsed: list[HydraOverride] = []
    problems: list[str] = []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            problems.append(_grammar(text, error, groups))
    return parsed, problems


def _compose_options(
    overrides: Iterable[HydraOverride], loader: ConfigLoader, groups: dict[str, list[str]]
) -> dict[str, Any] | None:
    """The values that the options typed give, the mistaken ones left out; None where a file is at fault."""
    options = [o for o in overrides if o.is_hydra_override() or o.value() in groups.get(o.key_or_group, ())]
    changes = [str(o.input_line) for o in options if o.type is OverrideType.CHANGE]
    try:
        composed = loader.load_configuration("config", changes, RunMode.RUN)
    except (HydraException, YAMLError):  # `error` names the file
        return None
    values = OmegaConf.to_container(composed)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "hydra"}


def _mistake_in(override: HydraOverride, composed: Composed) -> str | None:
    text, mark = str(override.input_line), _MARKS.get(override.type, "")
    if override.is_sweep_override():
        return _needs_sweep(text)
    return composed.mistake_in(Override(text, override.key_or_group, override.value(), mark))


def _needs_sweep(text: str) -> str:
    key, _, values = text.partition("=")
    as_list = "" if "(" in values else f", or type {key}=[{values}] for a list"
    return f"{text}: goes through several values; add -m{as_list}"


def _grammar(text: str, error: HydraException, groups: dict[str, list[str]]) -> str:
    if "=" not in text and not text.startswith("~"):
        return bare_word(text, groups)
    reason = str(error).splitlines()[0].removeprefix("LexerNoViableAltException: ")
    return f"{text}: cannot be read ({reason}); put a value that holds ,:{{}}[]()= in quotes: 'name=\"a,b\"'"


def _condense(error: Exception) -> str:
    """Hydra's message on one line, without its list of directories."""
    causes = [error] if error.__cause__ is None else [error, error.__cause__]
    texts = [re.split(r"\n\s*(?:Config search|Search) path:", str(cause))[0] for cause in causes]
    return ": ".join(" ".join(text.split()) for text in texts if text.strip())
