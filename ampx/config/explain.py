"""Pydantic's account of a bad value, told in the words that the user typed."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ampx.config.errors import as_typed
from ampx.config.schema import class_at, setting_names
from ampx.config.suggest import did_you_mean, nearest

Path = tuple[str | int, ...]


def explain(
    error: ValidationError, root: type[BaseModel], values: Mapping[str, Any], overrides: Sequence[str]
) -> list[str]:
    """One line for each wrong setting of `values`, which `root` refused with `error`."""
    rules: dict[Path, list[str]] = {}
    for detail in error.errors():
        path = _path(detail, values)
        rules.setdefault(path, []).append(_rule(detail, path, root, values))
    return [_line(path, _join(path_rules), values, overrides) for path, path_rules in rules.items()]


def _line(path: Path, rule: str, values: Mapping[str, Any], overrides: Sequence[str]) -> str:
    value = _value(values, path)
    if isinstance(value, Mapping) and rule.startswith(_dotted(path)):
        return rule  # of a section as a whole, which names the settings itself
    return f"{as_typed(_dotted(path), value, overrides)}: {rule}"


def _path(detail: ErrorDetails, values: Any) -> Path:
    """The keys that lead to the value; pydantic's location also names kinds and members of unions."""
    path: list[str | int] = []
    for step in detail["loc"]:
        if _has(values, step):
            values = values[step]
            path.append(step)
    if detail["type"] == "missing" and isinstance(values, Mapping):
        path.append(detail["loc"][-1])
    return (*path, "kind") if detail["type"] == "union_tag_invalid" else tuple(path)


def _has(values: Any, step: str | int) -> bool:
    if isinstance(values, list | tuple):
        return isinstance(step, int) and step < len(values)
    return isinstance(values, Mapping) and step in values


def _value(values: Any, path: Path) -> Any:
    for step in path:
        values = values.get(step) if isinstance(values, Mapping) else values[step]
    return values


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _join(rules: list[str]) -> str:
    """Several rules for one value are the members of a union: any of them would do."""
    first, *others = dict.fromkeys(rules)
    return " or ".join([first, *(rule.removeprefix("must be ") for rule in others)])


def _rule(detail: ErrorDetails, path: Path, root: type[BaseModel], values: Mapping[str, Any]) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_setting(path, root, values)
    if kind == "missing":
        is_entry = isinstance(detail["loc"][-1], int)
        return "needs more entries" if is_entry else "has no value; give it one"
    rule = _RULES.get(kind)
    return rule(detail) if rule else detail["msg"]


def _unknown_setting(path: Path, root: type[BaseModel], values: Mapping[str, Any]) -> str:
    section = tuple(str(step) for step in path[:-1])
    settings = class_at(root, values, section)
    known = setting_names(settings) if settings else []
    suggestion = nearest(str(path[-1]), known)
    if suggestion or not known:
        return f"there is no such setting{did_you_mean(suggestion and _dotted((*section, suggestion)))}"
    return f"there is no such setting; {_dotted(section) or 'the config'} has {', '.join(known)}"


def _choice(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    allowed = re.findall(r"'([^']*)'", context.get("expected") or context.get("expected_tags", ""))
    typed = str(context.get("tag", detail["input"]))
    choices = allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"
    return f"must be {choices}{did_you_mean(nearest(typed, allowed))}"


def _says(text: str) -> Callable[[ErrorDetails], str]:
    return lambda detail: text.format(**detail.get("ctx", {}))


_NUMBER = _says("must be a number, such as 300, 1e-3 or 2**16")
_TRUTH = _says("must be true or false")
_TEXT = _says("must be text")
_LIST = _says("must be a list, such as [a,b]")
_SECTION = _says("must be a section of settings; set them one by one")
_RULES: dict[str, Callable[[ErrorDetails], str]] = {
    "literal_error": _choice,
    "union_tag_invalid": _choice,
    "union_tag_not_found": _says("has no kind; choose an option of the group"),
    "value_error": lambda detail: str(detail.get("ctx", {})["error"]),
    "greater_than": _says("must be greater than {gt}"),
    "greater_than_equal": _says("must be at least {ge}"),
    "less_than": _says("must be less than {lt}"),
    "less_than_equal": _says("must be at most {le}"),
    "too_short": _says("must have at least {min_length} entries"),
    "too_long": _says("must have at most {max_length} entries"),
    "string_too_short": _says("must not be empty"),
    "int_type": _NUMBER,
    "float_type": _NUMBER,
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "string_type": _TEXT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _SECTION,
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
}
