"""Islands: modules, chosen by patterns, that compute in another dtype than the rest of the model.

An island casts what comes in and what goes out, so its neighbours never see its dtype. Its parameters are
stored by `storage`. The patched `forward` survives deepcopy, leaves state-dict keys alone and is traced by
torch.compile.
"""

import functools
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ampx.numerics.casts import cast_floating
from ampx.numerics.dtypes import dtype_name
from ampx.numerics.policy import PrecisionPolicy


def match_islands(model: nn.Module, policy: PrecisionPolicy) -> dict[str, torch.dtype]:
    """Names and dtypes of the modules that `policy.islands` picks; where several patterns do, the last wins.

    A pattern is matched against module names and class names. One that picks nothing is a ValueError.
    """
    islands: dict[str, torch.dtype] = {}
    first_names = {module: name for name, module in model.named_modules()}
    for pattern, dtype in policy.islands:
        matched = [
            module
            for name, module in model.named_modules(remove_duplicate=False)
            if fnmatchcase(name, pattern) or fnmatchcase(type(module).__name__, pattern)
        ]
        called = [first_names[module] for module in matched if _is_called(module)]
        if not called:
            raise ValueError(_nothing_matched(model, pattern, [first_names[module] for module in matched]))
        islands |= dict.fromkeys(called, dtype)
    return islands


def apply_islands(model: nn.Module, policy: PrecisionPolicy) -> dict[str, str]:
    """Make every island compute in its dtype; its name and dtype are the claim."""
    islands = match_islands(model, policy)
    for name, dtype in islands.items():
        module = model.get_submodule(name)
        outer_dtype = enclosing_dtype(name, islands, policy.compute_dtype)
        autocast_dtype = None if policy.is_pure or dtype == torch.float32 else dtype
        module.forward = functools.partial(
            _island_forward, module.forward, policy.device_type, dtype, autocast_dtype, outer_dtype
        )
    return {name: dtype_name(dtype) for name, dtype in islands.items()}


def enclosing_dtype(name: str, islands: dict[str, torch.dtype], default: torch.dtype) -> torch.dtype:
    """Dtype of the innermost island around the module `name`, the module itself not counted."""
    while name:
        name = name.rpartition(".")[0]
        if name in islands:
            return islands[name]
    return default


def _island_forward(
    forward: Callable[..., Any],
    device_type: str,
    dtype: torch.dtype,
    autocast_dtype: torch.dtype | None,
    outer_dtype: torch.dtype,
    *args: Any,
    **kwargs: Any,
) -> Any:
    args, kwargs = cast_floating(args, dtype), cast_floating(kwargs, dtype)
    with torch.autocast(device_type, autocast_dtype, enabled=autocast_dtype is not None):
        outputs = forward(*args, **kwargs)
    return cast_floating(outputs, outer_dtype)


def _is_called(module: nn.Module) -> bool:
    """False of a ModuleList and other mere containers, whose forward nobody can call."""
    return type(module).forward is not nn.Module.forward


def _nothing_matched(model: nn.Module, pattern: str, containers: Iterable[str]) -> str:
    typed = f"dtype.islands={pattern}"
    for name in containers:
        return f"{typed}: {name} only holds modules and is never called itself; use '{name}.*'"
    names = {name for name, _ in model.named_modules() if name}
    classes = {type(module).__name__ for module in model.modules()}
    nearest = get_close_matches(pattern, sorted(names | classes), n=3, cutoff=0.4)
    known = nearest or sorted(classes)
    return f"{typed}: matches no module name or class name of the model; nearest: {', '.join(known)}"
