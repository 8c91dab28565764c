"""Casts of everything floating in nested arguments and results of a module or a model."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

# float64 and complex tensors were meant as they are
CASTABLE = frozenset({torch.float32, torch.bfloat16, torch.float16})


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """`value` with each float32, bfloat16 and float16 tensor in it as `dtype`; everything else is shared.

    Looks into tuples, named tuples, lists, mappings and dataclasses.
    """
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in CASTABLE else value
    return _map_members(value, lambda member: cast_floating(member, dtype))


def _map_members(value: Any, cast: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        members = [cast(member) for member in value]  # pyright: ignore[reportUnknownVariableType]
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    if isinstance(value, list):
        return [cast(member) for member in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, MutableMapping) and type(value) is not dict:
        return _map_mapping(value, cast)
    if isinstance(value, Mapping):  # copy.copy of a plain dict is what torch.compile cannot trace
        return {key: cast(member) for key, member in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _map_dataclass(value, cast)
    return value


def _map_mapping(value: MutableMapping[Any, Any], cast: Callable[[Any], Any]) -> MutableMapping[Any, Any]:
    result = copy.copy(value)  # keeps a default factory, or the class of a model's output
    for key, member in value.items():
        result[key] = cast(member)
    return result


def _map_dataclass(value: Any, cast: Callable[[Any], Any]) -> Any:
    result = copy.copy(value)
    for field in dataclasses.fields(value):
        object.__setattr__(result, field.name, cast(getattr(value, field.name)))  # frozen ones too
    return result
