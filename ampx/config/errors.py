"""The error that a user's request ends in, and how a setting is written in its text."""

from collections.abc import Mapping, Sequence
from typing import Any


class ConfigError(ValueError):
    """The request is wrong. Every problem is one line: setting as typed, value, rule, way out."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def as_typed(key: str, value: object, overrides: Sequence[str] = ()) -> str:
    """The last of `overrides` that set `key`, else `key=value` as it could be typed."""
    typed = [text for text in overrides if text.partition("=")[0].lstrip("+~") == key]
    return typed[-1] if typed else f"{key}={_format(value)}"


def _format(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_format(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_format, value)) + "]"
    return str(value)
