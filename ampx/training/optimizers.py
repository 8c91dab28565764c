"""From the `optimizer` settings and a task's named parameters to optimizers."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from ampx.build import build, import_target
from ampx.config.fields import TargetSettings
from ampx.config.optimizer import (
    BuiltinOptimizerSettings,
    CustomOptimizerSettings,
    OptimizerSettings,
    settings_for,
)
from ampx.config.suggest import did_you_mean, nearest

OptimizerFactory = Callable[[list[dict[str, Any]]], object]


def own_parameters(
    model: nn.Module, groups: Mapping[str, Iterable[nn.Parameter]]
) -> dict[str, list[nn.Parameter]]:
    """The trainable parameters of each named optimizer; ValueError unless each has exactly one owner."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    owners: dict[nn.Parameter, str] = {}
    for owner, parameters in groups.items():
        for parameter in dict.fromkeys(parameters):
            if parameter not in names:
                raise _ownership_error(
                    f"{owner!r} has a parameter of shape {tuple(parameter.shape)} that is not the model's",
                    "make it part of the model, so that checkpoints hold it",
                )
            if parameter in owners:
                both = f"{owners[parameter]!r} and {owner!r}"
                raise _ownership_error(f"{names[parameter]} is in {both}", "give it to one of them")
            owners[parameter] = owner
    unowned = [
        name for parameter, name in names.items() if parameter.requires_grad and parameter not in owners
    ]
    if unowned:
        raise _ownership_error(
            f"nothing trains {', '.join(unowned[:5])}{' …' if len(unowned) > 5 else ''}",
            "give each trainable parameter to an optimizer, or freeze it with requires_grad_(False)",
        )
    return {name: [p for p, owner in owners.items() if owner == name and p.requires_grad] for name in groups}


def _ownership_error(fault: str, way_out: str) -> ValueError:
    return ValueError(f"task.optimizers: {fault}; {way_out}")


def build_optimizers(
    settings: OptimizerSettings, groups: Mapping[str, Iterable[nn.Parameter]]
) -> dict[str, Optimizer]:
    """One optimizer for each name, over the parameters that it owns: none of them is frozen."""
    for name in settings.by_name:
        if name not in groups:
            raise ValueError(
                f"optimizer.by_name.{name}: the task's optimizers are {', '.join(groups)}"
                f"{did_you_mean(nearest(name, groups)) or '; name one of these'}"
            )
    return {
        name: _build_optimizer(settings_for(settings, name), name, group) for name, group in groups.items()
    }


def supports_device_gate(optimizer: Optimizer) -> bool:
    """Whether its step takes `found_inf` and a tensor lr, as torch's fused Adam(W), SGD and Adagrad do."""
    return type(optimizer) in (Adam, AdamW, SGD, Adagrad) and all(g["fused"] for g in optimizer.param_groups)


def _build_optimizer(settings: OptimizerSettings, name: str, group: Iterable[nn.Parameter]) -> Optimizer:
    parameters = list(group)
    if not parameters:
        raise ValueError(
            f"task.optimizers: {name!r} has no trainable parameter; drop it, or unfreeze its part"
        )
    make = _custom(settings) if isinstance(settings, TargetSettings) else _builtin(settings, parameters)
    optimizer = make(_param_groups(parameters, splits=settings.no_decay and _decays(settings)))
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"optimizer: gave a {type(optimizer).__name__}; optimizer._target_ must be or return a "
            "torch.optim.Optimizer over the parameter groups that it is called with"
        )
    _check_eps(optimizer)
    return optimizer


def _builtin(settings: BuiltinOptimizerSettings, parameters: Sequence[nn.Parameter]) -> OptimizerFactory:
    constructor = import_target(settings.implementation)
    fused = _chooses_fused(settings, constructor, parameters)
    return functools.partial(constructor, **settings.arguments, fused=fused)


def _custom(settings: CustomOptimizerSettings) -> OptimizerFactory:
    _check_steps_alone(settings.target)
    partial = build(settings.target, {**settings.arguments, "_partial_": True}, setting="optimizer")
    return cast(OptimizerFactory, partial)


def _decays(settings: OptimizerSettings) -> bool:
    if isinstance(settings, TargetSettings):
        return "weight_decay" in inspect.signature(import_target(settings.target)).parameters
    return settings.weight_decay > 0


def _check_steps_alone(target: str) -> None:
    step = getattr(import_target(target, setting="optimizer"), "step", None)
    closure = inspect.signature(step).parameters.get("closure") if step else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer._target_={target}: its step evaluates the loss again through a closure, which would "
            "pass by the loss scaler and the ledger; use an optimizer whose step needs no closure"
        )


def _chooses_fused(
    settings: BuiltinOptimizerSettings, constructor: Callable[..., Any], parameters: Sequence[nn.Parameter]
) -> bool:
    if settings.fused is False:
        return False
    kinds = {(p.device, p.dtype) for p in parameters}
    missing = [kind for kind in kinds if not _has_fused_kernel(constructor, *kind)]
    if missing and settings.fused is True:
        device, dtype = missing[0]
        raise ValueError(
            f"optimizer.fused=true: torch {torch.__version__} has no fused {settings.kind} for {dtype} "
            f"on {device.type}; use optimizer.fused=auto"
        )
    return not missing


def _has_fused_kernel(constructor: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> bool:
    """Found out by a step of one number: the set of fused kernels grows with every release of torch."""
    probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
    probe.grad = torch.zeros_like(probe)
    try:
        constructor([probe], fused=True).step()
    except RuntimeError:
        return False
    return True


def _param_groups(parameters: list[nn.Parameter], *, splits: bool) -> list[dict[str, Any]]:
    if not splits:
        return [{"params": parameters}]
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _check_eps(optimizer: Optimizer) -> None:
    """The config's own rule sees `optimizer.eps`; this sees custom optimizers, `by_name` and defaults."""
    for group in optimizer.param_groups:
        eps = group.get("eps")
        is_half = any(p.dtype == torch.float16 for p in group["params"])
        if is_half and isinstance(eps, float) and eps and not torch.tensor(eps, dtype=torch.float16):
            raise ValueError(
                f"optimizer.eps={eps} with float16 parameters: it is 0 in float16, and 0/0 is NaN; "
                "set dtype.masters=float32 or optimizer.eps=1e-4"
            )
