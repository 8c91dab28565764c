"""How a model's parameters and buffers are stored, and whether they can be trained so."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ampx.numerics.casts import CASTABLE
from ampx.numerics.dtypes import dtype_name
from ampx.numerics.islands import enclosing_dtype, match_islands
from ampx.numerics.policy import PrecisionPolicy

StorageClaim = dict[str, dict[str, int]]


def set_storage(model: nn.Module, policy: PrecisionPolicy) -> StorageClaim:
    """Give every parameter and floating buffer its dtype in place; tensors stay the same objects.

    Modules with running statistics keep them in float32, and their affine parameters too, which CPU kernels
    want equal. Islands of a pure policy are stored in their own dtype. ValueError where a value would
    overflow, or where two modules share a tensor that they need in two dtypes.
    """
    targets: dict[Tensor, _Target] = {}
    for tensor, target in _targets(model, policy):
        first = targets.setdefault(tensor, target)
        if first.dtype != target.dtype:
            raise ValueError(
                f"dtype.islands: {first.name} ({dtype_name(first.dtype)}) and {target.name} "
                f"({dtype_name(target.dtype)}) are one tensor; make both modules islands of one dtype, "
                "or neither"
            )
    for tensor, target in targets.items():
        tensor.data = _cast(tensor.data, target)
    return describe_storage(model)


def describe_storage(model: nn.Module) -> StorageClaim:
    """Number of tensors by dtype: of `parameters`, of `buffers`, and of `running_statistics` among these."""
    running = [module for module in model.modules() if _is_running(module)]
    statistics = [getattr(module, name) for module in running for name in ("running_mean", "running_var")]
    return {
        "parameters": _count(list(model.parameters())),
        "buffers": _count(list(model.buffers())),
        "running_statistics": _count(statistics),
    }


def check_trainable(model: nn.Module, policy: PrecisionPolicy, *, is_scaled: bool) -> None:
    """ValueError where gradients are float16 and must be unscaled in place: quotients below 6e-8 vanish.

    The config's own rules see `dtype.param_dtype`; this sees what a custom model or an island brought.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
    if names and is_scaled and policy.masters == "none":
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise ValueError(
            f"dtype.masters=none: {shown} would get float16 gradients, which vanish below 6e-8 when they "
            "are unscaled; set dtype.masters=float32, or scaler=none scaler.allow_unscaled=true"
        )


class _Target(NamedTuple):
    name: str
    dtype: torch.dtype


def _targets(model: nn.Module, policy: PrecisionPolicy) -> Iterator[tuple[Tensor, _Target]]:
    islands = match_islands(model, policy) if policy.is_pure else {}
    for name, module in model.named_modules():
        if _is_running(module):
            param_dtype = buffer_dtype = torch.float32
        else:
            param_dtype = islands.get(name) or enclosing_dtype(name, islands, policy.param_dtype)
            buffer_dtype = policy.buffer_dtype if param_dtype == policy.param_dtype else param_dtype
        prefix = f"{name}." if name else ""
        for own_name, parameter in module.named_parameters(recurse=False):
            if parameter.dtype in CASTABLE:
                yield parameter, _Target(prefix + own_name, param_dtype)
        for own_name, buffer in module.named_buffers(recurse=False):
            if buffer.dtype in CASTABLE and buffer_dtype is not None:
                yield buffer, _Target(prefix + own_name, buffer_dtype)


def _is_running(module: nn.Module) -> bool:
    """BatchNorm and its kin, with statistics: in float16 a deviation of 256 has an infinite variance."""
    return isinstance(module, _NormBase) and module.running_mean is not None


def _cast(tensor: Tensor, target: _Target) -> Tensor:
    cast = tensor.to(target.dtype)
    if cast is not tensor and torch.isinf(cast).sum() != torch.isinf(tensor).sum():
        raise ValueError(
            f"{target.name} holds {float(tensor.abs().max()):.4g}, which {dtype_name(target.dtype)} cannot "
            "hold; name its module in dtype.islands, or set dtype.buffer_dtype=null if it is a buffer"
        )
    return cast


def _count(tensors: list[Tensor] | list[nn.Parameter]) -> dict[str, int]:
    return dict(Counter(dtype_name(tensor.dtype) for tensor in tensors))
