"""Builds the objects that a config names by dotted path under `_target_`, their arguments beside it.

Torch-free. Mappings inside the arguments that have a `_target_` are built first, and `_partial_: true`
makes a `functools.partial`. What can be mistyped ends in a ValueError before anything is called.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ampx.config.fields import Settings, is_class_path
from ampx.config.suggest import did_you_mean, nearest


def build(target: str, arguments: Mapping[str, Any], *, setting: str = "") -> object:
    """Calls the class or function at `target`; messages name it by `setting`, such as `model`."""
    check_target(target, arguments, setting=setting)
    return _call(target, arguments)


def check_target(target: str, arguments: Mapping[str, Any], *, setting: str = "") -> None:
    """Raises what `build` would about imports and argument names, and calls nothing."""
    function = import_target(target, setting=setting)
    _check_arguments(function, target, arguments, setting)
    for inner_setting, inner in _nested_targets(arguments, setting):
        check_target(_target_of(inner, inner_setting), _beside_target(inner), setting=inner_setting)


def import_target(target: str, *, setting: str = "") -> Callable[..., Any]:
    """The class or function at a dotted path."""
    typed = f"{_join(setting, '_target_')}={target}"
    parts = target.split(".")
    if not is_class_path(target):
        raise ValueError(f"{typed}: must be a dotted path to a class or function, such as my_pkg.Net")
    found, depth = _import_longest_module(parts, typed)
    for position in range(depth, len(parts)):
        if not hasattr(found, parts[position]):
            owner = ".".join(parts[:position])
            similar = did_you_mean(nearest(parts[position], _names_in(found)))
            way_out = similar or f"; look for the name in {owner}"
            raise ValueError(f"{typed}: {owner} has no {parts[position]!r}{way_out}")
        found = getattr(found, parts[position])
    if not callable(found):
        raise ValueError(f"{typed}: is of type {type(found).__name__}; name a class or a function")
    return found


def field_arguments(settings: Settings) -> dict[str, Any]:
    """The fields of a built-in option, as arguments of its implementation; `kind` only chose it."""
    return {name: getattr(settings, name) for name in type(settings).model_fields if name != "kind"}


def _call(target: str, arguments: Mapping[str, Any]) -> object:
    function = import_target(target)
    values = {name: _construct(value) for name, value in arguments.items() if name != "_partial_"}
    return functools.partial(function, **values) if arguments.get("_partial_") else function(**values)


def _construct(value: object) -> object:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return _call(value["_target_"], _beside_target(value))
        return {key: _construct(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_construct(inner) for inner in value]
    return value


def _nested_targets(value: object, setting: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, inner in items:
        inner_setting = _join(setting, str(key))
        if isinstance(inner, Mapping) and "_target_" in inner:
            yield inner_setting, inner
        else:
            yield from _nested_targets(inner, inner_setting)


def _beside_target(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != "_target_"}


def _target_of(mapping: Mapping[str, Any], setting: str) -> str:
    target = mapping["_target_"]
    if not isinstance(target, str):
        raise ValueError(f"{_join(setting, '_target_')}={target!r}: must be a dotted path such as my_pkg.Net")
    return target


def _import_longest_module(parts: Sequence[str], typed: str) -> tuple[object, int]:
    module: object = None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # the module is there; something that it imports is not
                raise _import_failure(typed, name, error) from error
            if depth == 1:
                raise ValueError(
                    f"{typed}: there is no module {name!r}; install it, or add its folder to PYTHONPATH"
                ) from None
            return module, depth - 1
        except Exception as error:
            raise _import_failure(typed, name, error) from error
    return module, len(parts)


def _names_in(owner: object) -> list[str]:
    submodules = pkgutil.iter_modules(getattr(owner, "__path__", []))
    return [*dir(owner), *(module.name for module in submodules)]


def _import_failure(typed: str, module: str, error: Exception) -> ValueError:
    return ValueError(f"{typed}: importing {module} raised {type(error).__name__}: {error}; mend that module")


def _check_arguments(
    function: Callable[..., Any], target: str, arguments: Mapping[str, Any], setting: str
) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C publish no signature
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
    typed = [name for name in arguments if name != "_partial_"]
    for name in typed:
        if name not in named and not takes_any_name:
            hint = did_you_mean(nearest(name, named)) or f"; its arguments are: {', '.join(named) or 'none'}"
            raise ValueError(
                f"{_join(setting, name)}={arguments[name]!r}: {target} takes no argument {name!r}{hint}"
            )
    missing = [name for name, p in named.items() if p.default is p.empty and name not in arguments]
    if missing and not arguments.get("_partial_"):
        way_out = " ".join(f"+{_join(setting, name)}=…" for name in missing)
        raise ValueError(
            f"{_join(setting, '_target_')}={target}: needs a value for {', '.join(missing)}; add {way_out}"
        )


def _join(setting: str, name: str) -> str:
    return f"{setting}.{name}" if setting else name
