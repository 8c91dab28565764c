"""Environment variables in a config: all but the secret-looking ones are read once, in the parent.

A secret stays in the config as the text `${oc.env:NAME}`, so that no file, log or tracker ever holds it.
"""

import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers.oc import env as read_environment

_REFERENCE = re.compile(r"\$\{oc\.env:([^},]+)")
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


def is_secret(variable: str) -> bool:
    return _SECRET.search(variable) is not None


@contextmanager
def secrets_unread() -> Generator[None]:
    """Within the block `${oc.env:NAME}` of a secret resolves to its own text."""
    OmegaConf.register_new_resolver("oc.env", _read_unless_secret, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", read_environment, replace=True)


def _read_unless_secret(variable: str, *default: Any) -> str | None:
    if is_secret(variable):
        return "${oc.env:" + ",".join([variable, *map(_format_default, default)]) + "}"
    return read_environment(variable, *default)


def _format_default(default: Any) -> str:
    return "null" if default is None else str(default)


def redactor(config_text: str) -> Callable[[str], str]:
    """Takes the secrets that a config refers to out of any text, such as an error that quotes one."""
    names = filter(is_secret, _REFERENCE.findall(config_text))
    secrets = {value: f"${{oc.env:{name}}}" for name in names if (value := os.environ.get(name))}

    def redact(text: str) -> str:
        for value, reference in secrets.items():
            text = text.replace(value, reference)
        return text

    return redact
