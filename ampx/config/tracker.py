"""Where step records go besides the trial's own files."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from ampx.config.fields import Settings


class ObserverSettings(Settings):
    """A user's own observer of step records: a class path, or one with arguments beside it."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    target: str = Field(alias="_target_", pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)+$")

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _from_class_path(value: object) -> object:
    return {"_target_": value} if isinstance(value, str) else value


Observer = Annotated[ObserverSettings, BeforeValidator(_from_class_path)]


class TrackerSettings(Settings):
    kind: Literal["none"]
    observers: tuple[Observer, ...]
