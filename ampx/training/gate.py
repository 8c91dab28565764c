"""Who decides that a step is skipped.

`HostGate` reads the gradient norm and lets Python decide: free on a CPU, one synchronisation on a GPU.
`DeviceGate` decides with tensors only and lets a fused optimizer skip inside its kernel. Both give the
same bits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ampx.training import gradients
from ampx.training.ema import Ema
from ampx.training.guard import BufferGuard
from ampx.training.lane import Lane
from ampx.training.ledger import Number

CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one attempt: numbers on the host or still on the device, as the gate left them."""

    found_inf: Number
    grad_norm: Number
    lr: Number


class Gate(Protocol):
    """Clips, steps or skips one lane whose gradients are unscaled."""

    name: str

    def settle(
        self, lane: Lane, grads: list[Tensor], found_inf: Tensor | None, clip_norm: float | None
    ) -> Verdict:
        """`found_inf` comes from unscaling, None when nothing was scaled."""
        ...

    def read(self, value: Tensor) -> Number:
        """The present value of a tensor that will be overwritten in place."""
        ...

    def conclude(self, found_infs: Sequence[Number], guard: BufferGuard, ema: Ema) -> None:
        """After every phase of an iteration: buffers go back if any skipped, the EMA moves if any stepped."""
        ...


class HostGate:
    """Reads the norm; every optimizer and every scheduler works."""

    name = "host"

    def settle(
        self, lane: Lane, grads: list[Tensor], found_inf: Tensor | None, clip_norm: float | None
    ) -> Verdict:
        norm = gradients.total_norm(grads).item()
        is_skipped = False
        if not math.isfinite(norm):
            found_inf = gradients.found_nonfinite(grads) if found_inf is None else found_inf
            norm, is_skipped = self._look_closer(grads, norm, found_inf)
        lr = lane.schedule.prepare()
        if not is_skipped:
            if clip_norm is not None and norm > clip_norm:
                # a tensor, for a Python number would be rounded to bfloat16 gradients' own dtype
                torch._foreach_mul_(
                    grads, torch.tensor(clip_norm / (norm + CLIP_EPS), device=grads[0].device)
                )
            lane.optimizer.step()
            lane.schedule.advance()
        lane.masters.store()
        return Verdict(float(is_skipped), norm, lr)

    def read(self, value: Tensor) -> Number:
        return value.item()

    def conclude(self, found_infs: Sequence[Number], guard: BufferGuard, ema: Ema) -> None:
        if any(found_infs):
            guard.restore()
        if not all(found_infs):
            ema.update()

    def _look_closer(self, grads: list[Tensor], norm: float, found_inf: Tensor) -> tuple[float, bool]:
        if found_inf.item():
            return norm, True
        wide = gradients.wide_norm(grads).item()
        if math.isfinite(wide):
            return wide, False
        found_inf.fill_(1.0)  # finite while scaled, not after division by a scale below 1
        return norm, True


class DeviceGate:
    """Never waits for the device; needs a fused optimizer and a schedule made of tensors."""

    name = "device"

    def settle(
        self, lane: Lane, grads: list[Tensor], found_inf: Tensor | None, clip_norm: float | None
    ) -> Verdict:
        norm = gradients.total_norm(grads)
        wide = gradients.wide_norm(grads)
        found_inf = gradients.found_nonfinite(grads) if found_inf is None else found_inf
        found_inf.copy_(torch.maximum(found_inf, (~torch.isfinite(wide)).float()))
        is_rescued = torch.isinf(norm) & (found_inf == 0)
        norm = torch.where(is_rescued, wide, norm.double())
        if clip_norm is not None:
            coefficient = torch.where(norm > clip_norm, clip_norm / (norm + CLIP_EPS), 1.0)
            torch._foreach_mul_(grads, coefficient.float())
        lr = lane.schedule.prepare_tensor()
        self._step(lane.optimizer, found_inf)
        lane.masters.store()
        lane.schedule.advance_tensor(found_inf)
        return Verdict(found_inf, norm, lr)

    def read(self, value: Tensor) -> Number:
        return value.clone()

    def conclude(self, found_infs: Sequence[Number], guard: BufferGuard, ema: Ema) -> None:
        found = torch.stack([torch.as_tensor(value).reshape(()) for value in found_infs])
        guard.restore_where(found.amax())
        ema.update_tensor(1.0 - found.amin())

    def _step(self, optimizer: Any, found_inf: Tensor) -> None:
        optimizer.grad_scale, optimizer.found_inf = None, found_inf
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf


def choose_gate(setting: str, lanes: Mapping[str, Lane], device: torch.device) -> Gate:
    """`auto` is the device where a sync costs something and every lane can; ValueError if asked in vain."""
    unable = [lane.name for lane in lanes.values() if not lane.can_gate_on_device]
    if setting == "device" and unable:
        raise ValueError(
            f"train.gate=device: optimizer {', '.join(unable)} cannot skip on the device; use a fused AdamW, "
            "Adam, SGD or Adagrad with a built-in schedule, or train.gate=auto"
        )
    is_device = setting == "device" or (setting == "auto" and device.type == "cuda" and not unable)
    return DeviceGate() if is_device else HostGate()
