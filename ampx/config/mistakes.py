"""Why an override cannot be composed: what Hydra refused, told with the nearest name there is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampx.config.experiment import ExperimentConfig
from ampx.config.schema import classes_of, kinds_of, setting_names
from ampx.config.suggest import did_you_mean, nearest, nearest_key

_MARKED = {
    "+": "is there already; type it without the +",
    "~": "a setting cannot be removed; set it to null, or its group to none",
}


@dataclass(frozen=True)
class Override:
    """One `key=value` as typed; `mark` is what stood before the key: nothing, `+`, `++` or `~`."""

    text: str
    key: str
    value: object
    mark: str = ""


@dataclass(frozen=True)
class Composed:
    """What an override can refer to: the groups with their options, and the values composed without it."""

    groups: Mapping[str, Sequence[str]]
    values: Mapping[str, Any]

    def mistake_in(self, override: Override) -> str | None:
        """What is wrong with the override, as one line."""
        if override.key in self.groups and not isinstance(override.value, Mapping):
            problem = self._about_option(override)
        elif override.mark == "++":
            problem = None
        else:
            problem = self._about_key(override)
        return problem and f"{override.text}: {problem}"

    def _about_option(self, override: Override) -> str | None:
        options = self.groups[override.key]
        if override.mark == "+" and override.key in self.values:
            return f"{override.key} is chosen already; type it without the +"
        if override.mark or override.value in options:
            return None
        suggestion = did_you_mean(nearest(str(override.value), options))
        return f"{override.key} has no such option{suggestion or '; choose one of ' + ', '.join(options)}"

    def _about_key(self, override: Override) -> str | None:
        path = override.key.split(".")
        section, name = self._deepest(path)
        if name is None:
            return _MARKED.get(override.mark)
        if override.mark == "+":
            return None
        if not isinstance(section, Mapping):
            return f"{'.'.join(path[: path.index(name)])} is one value, not a section; set it without .{name}"
        if section.get("kind") == "custom":
            return f"an argument of your own is added with a +; type +{override.text}"
        return self._other_kinds(path, section) or self._unknown(override.key)

    def _deepest(self, path: list[str]) -> tuple[Any, str | None]:
        """The last section on the way that exists, and the first name that it lacks."""
        section: Any = self.values
        for name in path:
            if not isinstance(section, Mapping) or name not in section:
                return section, name
            section = section[name]
        return section, None

    def _other_kinds(self, path: list[str], section: Mapping[str, Any]) -> str | None:
        """The setting exists, but only where another option of the group is chosen."""
        group, name = path[0], path[-1]
        owners = [c for c in classes_of(ExperimentConfig, group) if name in setting_names(c)]
        kinds = [kind for owner in owners for kind in kinds_of(owner)]
        if len(path) != 2 or not kinds:
            return None
        chosen = f"{group}={section.get('kind')}"
        return f"{chosen} has no {name}; choose {group}={' or '.join(kinds)}, or leave it out"

    def _unknown(self, key: str) -> str:
        suggestion = nearest(key, self.groups) if "." not in key else None
        suggestion = suggestion or nearest_key(key, [*_dotted_keys(self.values), *self.groups])
        return f"there is no such setting{did_you_mean(suggestion) or '; --cfg job lists them all'}"


def bare_word(text: str, groups: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with an argument that has no `=`."""
    owners = [f"{group}={text}" for group, options in groups.items() if text in options]
    return f"{text}: settings are typed as name=value{did_you_mean(' or '.join(owners) or None)}"


def _dotted_keys(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in values.items():
        is_section = isinstance(value, Mapping) and value
        keys += _dotted_keys(value, f"{prefix}{name}.") if is_section else [f"{prefix}{name}"]
    return keys
