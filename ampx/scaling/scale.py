"""The loss scale itself: a policy, the policy's state on a device, and what a checkpoint keeps of both."""

import math
import warnings
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from ampx.scaling.policies.policy import FLOAT32_MAX, FLOAT32_TINY, ScalePolicy, ScaleState

# so that torch.amp.GradScaler can load what `dynamic` saves
_TORCH_KEYS = {"growth_tracker": "_growth_tracker"}


class LossScale:
    """A scale that `advance_` moves by its policy's rule; on the CPU until `move_to`."""

    def __init__(self, policy: ScalePolicy, init_scale: float) -> None:
        check_scale("init_scale", init_scale, policy)
        self.policy = policy
        self.state: ScaleState = policy.init_state(init_scale)
        self._settings = policy.settings

    @property
    def tensor(self) -> Tensor:
        """The scale, 0-d float32. `advance_` may write into it: clone what must outlive the step."""
        return self.state.scale

    @property
    def growth_tracker(self) -> Tensor | None:
        """Clean updates since the last rescale, 0-d int32; None where the policy does not count them."""
        return getattr(self.state, "growth_tracker", None)

    def move_to(self, device: torch.device) -> None:
        self.state = _to(self.state, device)
        self._settings = _to(self._settings, device)

    def inverse(self) -> Tensor:
        """1/scale, 0-d float32: the reciprocal in float64, as torch takes it, except where there is none."""
        scale = self.tensor
        return scale.reciprocal() if scale.device.type == "mps" else scale.double().reciprocal().float()

    def fresh_found_inf(self, inv_scale: Tensor) -> Tensor:
        """0; but 1 where the scale has collapsed so far that `inv_scale` is inf and makes NaN of zeros."""
        if self.policy.min_scale >= FLOAT32_TINY:
            return torch.zeros((), dtype=torch.float32, device=inv_scale.device)
        return inv_scale.isinf().float()

    def advance_(self, found_inf: Tensor, amax: Tensor | None) -> None:
        self.state = self.policy.advance_(self._settings, self.state, found_inf, amax)

    def set_(self, scale: float | Tensor) -> None:
        """Replace the scale alone. A number out of bounds raises; a tensor is clamped, to spare the sync."""
        if isinstance(scale, Tensor):
            if scale.numel() != 1 or scale.requires_grad:
                raise ValueError(
                    "new_scale should be a number or a 1-element tensor with requires_grad=False"
                )
            self.policy.clamp_(self.tensor.copy_(scale.reshape(())))
        else:
            check_scale("new_scale", scale, self.policy)
            self.tensor.fill_(scale)

    def hyperparameter(self, name: str) -> Any:
        if not hasattr(self.policy, name):
            raise ValueError(f"the scale policy {self.policy.name} has no {name}; choose one that has")
        return getattr(self.policy, name)

    def set_hyperparameter(self, name: str, value: float) -> None:
        self.hyperparameter(name)
        self.policy = replace(self.policy, **{name: value})
        self._settings = _to(self.policy.settings, self.tensor.device)
        self.state = self.policy.readmit(self.state)

    def __getstate__(self) -> dict[str, Any]:
        cpu = torch.device("cpu")  # whoever unpickles may lack our device
        return self.__dict__ | {
            "state": _to(self.state, cpu),
            "_settings": _to(self._settings, cpu),
        }

    def state_dict(self) -> dict[str, Any]:
        """Policy name, state and hyperparameters as plain Python values."""
        state = {_TORCH_KEYS.get(name, name): value.item() for name, value in self.state._asdict().items()}
        return {"policy": self.policy.name} | state | _hyperparameters(self.policy)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over the saved state; the policy keeps its own hyperparameters and warns where they differ."""
        self._check_loadable(saved)
        restored = {
            name: torch.full_like(current, saved[_TORCH_KEYS.get(name, name)])
            for name, current in self.state._asdict().items()
        }
        self.state = self.policy.readmit(self.state._replace(**restored))
        self._warn_of_kept(saved)

    def _check_loadable(self, saved: dict[str, Any]) -> None:
        saved_by = saved.get("policy", "dynamic")  # torch's own dict names no policy
        if saved_by != self.policy.name:
            raise ValueError(
                f"load_state_dict: the state was saved under the scale policy {saved_by}, this one is"
                f" {self.policy.name}; choose that policy, or start from init_scale={saved.get('scale')}"
            )
        for name in self.state._asdict():
            value = saved.get(_TORCH_KEYS.get(name, name))
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(
                    f"load_state_dict: {name}={value} is no finite number; the state is damaged, use another"
                    " checkpoint or start anew with init_scale"
                )

    def _warn_of_kept(self, saved: dict[str, Any]) -> None:
        differing = [
            f"{name}={own} (saved: {saved[name]})"
            for name, own in _hyperparameters(self.policy).items()
            if saved.get(name, own) != own
        ]
        if differing:
            warnings.warn(f"load_state_dict keeps this scaler's own {', '.join(differing)}", stacklevel=4)


def check_scale(name: str, scale: float, policy: ScalePolicy) -> None:
    if not FLOAT32_TINY <= scale <= FLOAT32_MAX:
        raise ValueError(f"{name}={scale}: must be a finite, positive float32; 65536 suits most models")
    if not policy.min_scale <= scale <= policy.max_scale:
        raise ValueError(
            f"{name}={scale}: must lie within min_scale={policy.min_scale} and max_scale={policy.max_scale};"
            f" choose another {name} or widen the bounds"
        )


def _to(tensors: Any, device: torch.device) -> Any:
    return type(tensors)(*(tensor.to(device) for tensor in tensors))


def _hyperparameters(policy: ScalePolicy) -> dict[str, Any]:
    return {field.name: getattr(policy, field.name) for field in fields(policy)}
