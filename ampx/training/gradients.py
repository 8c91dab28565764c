"""What a step must know about its gradients before it may act on them."""

import torch
from torch import Tensor

from ampx.scaling.unscale import check_and_unscale_


def total_norm(grads: list[Tensor]) -> Tensor:
    """L2 norm over all gradients, 0-d float32: it may overflow though no gradient did."""
    if all(grad.dtype is torch.float32 for grad in grads):
        norms = torch._foreach_norm(grads)
    else:
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)  # a bfloat16 norm has 3 digits
    return torch.linalg.vector_norm(torch.stack(norms))


def wide_norm(grads: list[Tensor]) -> Tensor:
    """L2 norm accumulated in float64, where squares of finite float32 numbers cannot overflow."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float64)))


def found_nonfinite(grads: list[Tensor]) -> Tensor:
    """1.0 where any gradient holds inf or NaN, else 0.0; 0-d float32, without a host sync."""
    found_inf = torch.zeros((), dtype=torch.float32, device=grads[0].device)
    return check_and_unscale_(grads, torch.ones_like(found_inf), found_inf)
