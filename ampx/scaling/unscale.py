"""Acts on lists of gradients: gather them, check and unscale them in place, find their largest magnitude.

Nothing here reads a tensor on the host.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def optimizer_grads(optimizer: Optimizer, *, allow_float16: bool) -> list[Tensor]:
    """The gradients that `optimizer` would apply; of a sparse one its values, which share its memory."""
    grads: list[Tensor] = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if not allow_float16 and any(grad.dtype is torch.float16 for grad in grads):
        raise ValueError(
            "Attempting to unscale FP16 gradients: float16 parameters lose small updates; keep the parameters"
            " in float32 and run the forward under torch.autocast, or step float32 master copies of them"
        )
    return [grad._values() if grad.is_sparse else grad for grad in grads]


def check_and_unscale_(grads: Sequence[Tensor], inv_scale: Tensor, found_inf: Tensor) -> Tensor:
    """Multiply `grads` by `inv_scale` in place and return `found_inf`, set to 1 where any was inf or NaN.

    Gradients may live on several devices; `found_inf` (0-d float32) is updated in place on its own. For
    DTensors it is agreed over the device mesh, so all ranks must pass the same layout of gradients.
    """
    groups: defaultdict[Hashable, list[Tensor]] = defaultdict(list)
    for grad in grads:
        groups[_layout(grad)].append(grad)
    for group in groups.values():
        device = group[0].device
        found = found_inf.to(device, non_blocking=True)
        torch._amp_foreach_non_finite_check_and_unscale_(
            group, found, inv_scale.to(device, non_blocking=True)
        )
        if found is not found_inf:
            found_inf.copy_(torch.maximum(found_inf, found.to(found_inf.device, non_blocking=True)))
    return found_inf


def _layout(grad: Tensor) -> Hashable:
    """What one call of the kernel needs its gradients to share."""
    if type(grad) is Tensor:
        return grad.device, grad.dtype
    # the kernel's DTensor handler reduces found_inf as the *first* gradient's placements demand
    dtensor: Any = grad
    return (
        grad.device,
        grad.dtype,
        getattr(dtensor, "device_mesh", None),
        getattr(dtensor, "placements", None),
    )


@torch.no_grad()
def gradient_amax(grads: Sequence[Tensor], device: torch.device) -> Tensor:
    """Largest magnitude among `grads`, NaN if there is one, as a 0-d float32 tensor on `device`.

    For DTensors it is the largest over all ranks.
    """
    if all(type(grad) is Tensor and grad.device.type == "cpu" for grad in grads):
        # one pass over the memory and no copy: 2 to 17 times faster there than the infinity norm
        amax = torch.stack([extreme for grad in grads for extreme in torch.aminmax(grad)]).abs().max()
    else:
        amax = torch.nn.utils.get_total_norm(grads, norm_type=float("inf"))
    if type(amax) is not Tensor:
        dtensor: Any = amax
        amax = dtensor.full_tensor()
    return amax.to(device, torch.float32, non_blocking=True)


def largest(values: Sequence[Tensor]) -> Tensor:
    """The largest of some 0-d tensors on one device."""
    return values[0] if len(values) == 1 else torch.stack(list(values)).amax()
