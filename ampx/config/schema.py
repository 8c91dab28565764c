"""What the settings classes admit: their names, their kinds, the class that a section has."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel


def setting_names(settings: type[BaseModel]) -> list[str]:
    """The names under which a class's settings are typed."""
    return [field.alias or name for name, field in settings.model_fields.items()]


def kinds_of(settings: type[BaseModel]) -> tuple[str, ...]:
    """The values of `kind` that select this class in its group."""
    field = settings.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def classes_of(settings: type[BaseModel], name: str) -> list[type[BaseModel]]:
    """The settings classes that the field `name` can hold: one for a section, several for a group."""
    field = settings.model_fields.get(name)
    return list(_models_in(field.annotation)) if field else []


def class_at(root: type[BaseModel], values: Any, path: tuple[str, ...]) -> type[BaseModel] | None:
    """The class of the section at `path`, chosen by the kinds that `values` holds on the way."""
    settings: type[BaseModel] | None = root
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
        kind = values.get("kind") if isinstance(values, Mapping) else None
        candidates = classes_of(settings, name) if settings else []
        settings = next((c for c in candidates if len(candidates) == 1 or kind in kinds_of(c)), None)
    return settings


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
