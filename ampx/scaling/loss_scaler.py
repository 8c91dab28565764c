"""`LossScaler`: torch.amp.GradScaler's interface over any scale policy, with a floor and a ceiling."""

import inspect
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, final, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampx.scaling.account import NO_GRADIENT, Account, Stage
from ampx.scaling.policies import Dynamic, ScalePolicy
from ampx.scaling.scale import LossScale
from ampx.scaling.unscale import check_and_unscale_, gradient_amax, largest, optimizer_grads


@final
class LossScaler:
    """Drop-in for torch.amp.GradScaler: the same arguments, methods and numbers, fewer traps.

    `policy` (see `ampx.scaling.policies`) replaces the rule that growth_factor, backoff_factor and
    growth_interval describe, so it excludes them. `min_scale` and `max_scale` narrow the policy's own bounds;
    within them the default's scales equal torch's bit for bit. Where it differs from torch:

    - device="cuda" without CUDA raises; torch disables itself and trains float16 unscaled.
    - `load_state_dict` restores the state but keeps the constructor's hyperparameters, and warns of it.
    - A scale so small that 1/scale is inf (only with min_scale=0) skips every step and warns; torch writes
      NaN into the parameters.
    - A growth interval shortened below the present count grows at the next clean update; torch's never would.
    - Nonsense arguments, closures however passed, and a step without any gradient raise.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        policy: ScalePolicy | None = None,
        min_scale: float = 0.0,
        max_scale: float = math.inf,
    ) -> None:
        if policy is None:
            policy = Dynamic(growth_factor, backoff_factor, growth_interval)
        elif (growth_factor, backoff_factor, growth_interval) != (2.0, 0.5, 2000):
            raise ValueError(
                f"policy={policy} together with growth_factor, backoff_factor or growth_interval: the policy"
                " has its own; give the factors to the policy, or leave out policy"
            )
        if enabled:
            _check_device(device)
        self._enabled = enabled
        self._loss_scale = LossScale(policy.within(min_scale, max_scale), init_scale)
        self._has_scaled = False
        self._accounts: dict[int, Account] = {}

    @overload
    def scale(self, outputs: Tensor) -> Tensor: ...
    @overload
    def scale(self, outputs: list[Tensor]) -> list[Tensor]: ...
    @overload
    def scale(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]: ...
    @overload
    def scale(self, outputs: Iterable[Any]) -> Iterable[Any]: ...
    def scale(self, outputs: Any) -> Any:
        """A tensor, or any nesting of iterables of tensors, times the scale; as it is if disabled."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale_on(outputs.device)
        if not isinstance(outputs, Iterable):
            raise ValueError("outputs must be a Tensor or an iterable of Tensors")
        scaled = map(self.scale, outputs)
        return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the optimizer's gradients in place, once per iteration, after all accumulation."""
        if not self._enabled:
            return
        account = self._account("unscale_", optimizer)
        account.check_may_unscale()
        grads = optimizer_grads(optimizer, allow_float16=False)
        if grads:
            account.found_inf = self.check_and_unscale_(grads)
            account.amax = gradient_amax(grads, account.found_inf.device) if self.needs_amax else None
        account.stage = Stage.UNSCALED

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)` unless a gradient is inf or NaN; unscales first if nobody has."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        _refuse_closure(*args, **kwargs)
        account = self._account("step", optimizer)
        account.check_may_step()
        step = self._step_on_device if _reads_found_inf(optimizer) else self._step_on_host
        result = step(optimizer, account, *args, **kwargs)
        account.stage = Stage.STEPPED
        return result

    def _step_on_host(self, optimizer: Optimizer, account: Account, *args: Any, **kwargs: Any) -> Any:
        if account.stage is Stage.READY:
            self.unscale_(optimizer)
        if not account.require_found_inf().item():
            return optimizer.step(*args, **kwargs)
        if self._loss_scale.inverse().isinf().item():
            warnings.warn(
                "The loss scale has collapsed to zero and every step is skipped: no scale makes the gradients"
                " finite, so look at the model and the data; min_scale=1 would have kept a floor.",
                RuntimeWarning,
                stacklevel=3,
            )
        return None

    def _step_on_device(self, optimizer: Any, account: Account, *args: Any, **kwargs: Any) -> Any:
        """Fused optimizers take `found_inf`, and the scale of gradients not yet unscaled, as attributes."""
        grad_scale = getattr(optimizer, "grad_scale", None)
        if account.stage is Stage.READY:
            self._check_without_unscaling(optimizer, account)
            scale = self._loss_scale.tensor
            grad_scale = scale if grad_scale is None else scale * grad_scale
        found_inf = account.require_found_inf()
        optimizer.grad_scale, optimizer.found_inf = grad_scale, found_inf
        try:
            return optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _check_without_unscaling(self, optimizer: Optimizer, account: Account) -> None:
        grads = optimizer_grads(optimizer, allow_float16=True)
        if not grads:
            return
        inv_scale = self._loss_scale.inverse()
        found_inf = self._loss_scale.fresh_found_inf(inv_scale)
        account.found_inf = check_and_unscale_(grads, torch.ones_like(inv_scale), found_inf)
        if self.needs_amax:
            account.amax = gradient_amax(grads, inv_scale.device) * inv_scale

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """End the iteration, after every `step()`: move the scale by the policy's rule, or to `new_scale`."""
        if not self._enabled:
            return
        self._check_has_scaled("update")
        if new_scale is not None:
            self._loss_scale.set_(new_scale)
        else:
            found_infs = [a.found_inf for a in self._accounts.values() if a.found_inf is not None]
            amaxes = [a.amax for a in self._accounts.values() if a.amax is not None]
            if not found_infs:
                raise ValueError(f"No inf checks were recorded prior to update: {NO_GRADIENT}.")
            self.advance_(largest(found_infs), largest(amaxes) if amaxes else None)
        self._accounts = {}

    def check_and_unscale_(self, grads: Sequence[Tensor]) -> Tensor:
        """Unscale `grads` in place; 1.0 if any was inf or NaN, else 0.0, as a new 0-d tensor.

        For loops that keep their own account: no host sync, no bookkeeping. If disabled, it only checks.
        """
        if not self._enabled:
            one = torch.ones((), device=grads[0].device)
            return check_and_unscale_(grads, one, torch.zeros_like(one))
        inv_scale = self._loss_scale.inverse()
        return check_and_unscale_(grads, inv_scale, self._loss_scale.fresh_found_inf(inv_scale))

    def advance_(self, found_inf: Tensor, amax: Tensor | None = None) -> None:
        """One update from a 0-d float32 `found_inf` and, if `needs_amax`, the unscaled gradients' amax."""
        if self._enabled:
            self._loss_scale.advance_(found_inf, amax)

    @property
    def scale_tensor(self) -> Tensor | None:
        """The scale, 0-d float32; None if disabled. An update may write into it: clone to keep."""
        return self._loss_scale.tensor if self._enabled else None

    @property
    def growth_tracker_tensor(self) -> Tensor | None:
        """Clean updates in a row, 0-d int32; None if disabled or not counted. Clone to keep."""
        return self._loss_scale.growth_tracker if self._enabled else None

    @property
    def needs_amax(self) -> bool:
        return self._enabled and self._loss_scale.policy.needs_amax

    @property
    def policy(self) -> ScalePolicy:
        """The policy in force, bounds included."""
        return self._loss_scale.policy

    def is_enabled(self) -> bool:
        return self._enabled

    def get_scale(self) -> float:
        """The scale as a number, which costs a host sync; 1.0 if disabled."""
        return self._loss_scale.tensor.item() if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        return self._loss_scale.hyperparameter("growth_factor")

    def set_growth_factor(self, new_factor: float) -> None:
        self._loss_scale.set_hyperparameter("growth_factor", new_factor)

    def get_backoff_factor(self) -> float:
        return self._loss_scale.hyperparameter("backoff_factor")

    def set_backoff_factor(self, new_factor: float) -> None:
        self._loss_scale.set_hyperparameter("backoff_factor", new_factor)

    def get_growth_interval(self) -> int:
        return self._loss_scale.hyperparameter("growth_interval")

    def set_growth_interval(self, new_interval: int) -> None:
        self._loss_scale.set_hyperparameter("growth_interval", new_interval)

    def state_dict(self) -> dict[str, Any]:
        """State and hyperparameters as plain values, torch's keys among them; empty if disabled.

        Save it after `update()`.
        """
        return self._loss_scale.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from this class's dict or torch.amp.GradScaler's; nothing if disabled."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled scaler;"
                " start without it"
            )
        self._loss_scale.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        if self._accounts:
            raise ValueError(
                "A LossScaler may only be pickled at the beginning of an iteration, or at the end after"
                " scaler.update()"
            )
        return self.__dict__ | {"_has_scaled": False}  # the next scaled loss decides the device anew

    def _scale_on(self, device: torch.device) -> Tensor:
        if not self._has_scaled:
            self._loss_scale.move_to(device)
            self._has_scaled = True
        return self._loss_scale.tensor.to(device, non_blocking=True)

    def _check_has_scaled(self, method: str) -> None:
        if not self._has_scaled:
            raise ValueError(
                f"Attempted {method} but nothing was scaled; call scaler.scale(loss).backward() earlier in"
                " the iteration"
            )

    def _account(self, method: str, optimizer: Optimizer) -> Account:
        self._check_has_scaled(method)
        return self._accounts.setdefault(id(optimizer), Account())


def _check_device(device: str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={device!r}: CUDA is not available, and float16 must not train unscaled; use"
            ' LossScaler(device="cpu") to scale on the CPU, or enabled=False to train without scaling'
        )


def _refuse_closure(*args: Any, **kwargs: Any) -> None:
    if kwargs.get("closure") is not None or any(callable(argument) for argument in args):
        raise RuntimeError(
            "Closure use is not currently supported if the scaler is enabled: the closure would run backward"
            " after the check; call scaler.step(optimizer) alone, or disable the scaler"
        )


def _reads_found_inf(optimizer: Optimizer) -> bool:
    """Whether `step()` skips by itself; one that asks for the scaler instead is skipped from the host."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    return "grad_scaler" not in inspect.signature(optimizer.step).parameters
