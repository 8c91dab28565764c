"""Where step records go besides the trial's own files."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from ampx.config.fields import CalledSettings, Settings


class ObserverSettings(CalledSettings):
    """A user's own observer of step records: a class path, or one with arguments beside it."""


def _from_class_path(value: object) -> object:
    return {"_target_": value} if isinstance(value, str) else value


Observer = Annotated[ObserverSettings, BeforeValidator(_from_class_path)]


class TrackerSettings(Settings):
    kind: Literal["none"]
    observers: tuple[Observer, ...]
