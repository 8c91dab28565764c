"""One attempted iteration, in its only right order.

forward and loss under autocast → scale → backward, for every micro-batch → unscale once → norm → clip →
step or skip, for every phase → update the scale once → buffers, EMA, ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ampx.numerics.policy import PrecisionPolicy
from ampx.scaling.loss_scaler import LossScaler
from ampx.scaling.unscale import gradient_amax, largest
from ampx.tasks.task import Phase, Task
from ampx.training.ema import Ema
from ampx.training.gate import Gate
from ampx.training.guard import BufferGuard
from ampx.training.lane import Lane, NoGradientError
from ampx.training.ledger import Attempt, Ledger, Number
from ampx.training.spans import Spans, no_spans


@dataclass(frozen=True, slots=True)
class Stepper:
    """Everything that one attempted iteration touches."""

    model: nn.Module
    task: Task
    lanes: Mapping[str, Lane]
    policy: PrecisionPolicy
    scaler: LossScaler
    gate: Gate
    guard: BufferGuard
    ema: Ema
    ledger: Ledger
    clip_norm: float | None
    spans: Spans = no_spans

    def attempt(self, step: int, batches: Sequence[Any]) -> None:
        """Try to move every optimizer once, on the mean loss over `batches` (the micro-batches)."""
        self.guard.snapshot()
        scaling = self._scaling_now()
        weights = _weights(batches)
        generators = [self.task.phases(self.model, self.policy.cast_batch(batch)) for batch in batches]
        settled: list[_Settled] = []
        with self.policy.step_region():
            while phases := _next_phases(generators):
                settled.append(self._attempt_phase(step, phases, weights, scaling))
        if not settled:
            raise ValueError("task.phases yielded no phase: a task must yield at least one Phase per batch")
        with self.spans("update"):
            self._conclude(settled)

    def _scaling_now(self) -> _Scaling | None:
        scale, tracker = self.scaler.scale_tensor, self.scaler.growth_tracker_tensor
        if scale is None:
            return None
        read = self.gate.read  # the scaler writes in place: what this attempt used must be noted before
        return _Scaling(read(scale), None if tracker is None else read(tracker))

    def _attempt_phase(
        self, step: int, phases: Sequence[Phase], weights: Sequence[float], scaling: _Scaling | None
    ) -> _Settled:
        lane = self._lane(phases[0].optimizer)
        loss, metrics = self._backward(lane, phases, weights)
        with self.spans("unscale"):
            grads = lane.gradients()
            found_inf = None if scaling is None else self.scaler.check_and_unscale_(grads)
            amax = None if found_inf is None else gradient_amax(grads, found_inf.device)
        with self.spans("step"):
            verdict = self.gate.settle(lane, grads, found_inf, self.clip_norm)
        self._drop_gradients()
        self.ledger.add(
            Attempt(
                step=step,
                optimizer=lane.name,
                loss=loss,
                lr=verdict.lr,
                grad_norm=verdict.grad_norm,
                grad_amax=amax,
                scale=scaling and scaling.scale,
                growth_tracker=scaling and scaling.growth_tracker,
                found_inf=verdict.found_inf,
                metrics=metrics,
            )
        )
        return _Settled(verdict.found_inf, found_inf, amax)

    def _backward(
        self, lane: Lane, phases: Sequence[Phase], weights: Sequence[float]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        losses: list[Tensor] = []
        metrics: list[Mapping[str, Tensor]] = []
        for phase, weight in zip(phases, weights, strict=True):
            loss, measured = self.policy.run(phase, self.spans)
            if not loss.requires_grad:
                raise NoGradientError(lane.name, lane.parameter_names)
            share = loss if weight == 1.0 else loss * weight
            with self.spans("backward"), self.policy.backward_region():
                self.scaler.scale(share).backward()
            lane.masters.collect_gradients()
            losses.append(share.detach())
            metrics.append({name: torch.as_tensor(value).detach() for name, value in measured.items()})
        if len(losses) == 1:
            return losses[0], metrics[0]
        return torch.stack(losses).sum(), _mean_metrics(metrics, weights)

    def _lane(self, name: str) -> Lane:
        try:
            return self.lanes[name]
        except KeyError:
            raise ValueError(
                f"task: a phase asks for optimizer {name!r}, but task.optimizers gave {sorted(self.lanes)}; "
                "use one of these names in Phase(optimizer=…)"
            ) from None

    def _drop_gradients(self) -> None:
        for lane in self.lanes.values():  # a phase may also reach the parameters of another optimizer
            lane.drop_gradients()

    def _conclude(self, settled: Sequence[_Settled]) -> None:
        checked = [phase.checked for phase in settled if phase.checked is not None]
        if checked:
            amaxes = [phase.amax for phase in settled if phase.amax is not None]
            self.scaler.advance_(largest(checked), largest(amaxes))
        self.gate.conclude([phase.found_inf for phase in settled], self.guard, self.ema)


class _Scaling(NamedTuple):
    """What the scaler applied to this iteration."""

    scale: Number
    growth_tracker: Number | None


class _Settled(NamedTuple):
    """One phase after its gate: `checked` is the scaler's own found_inf, None while it is inactive."""

    found_inf: Number
    checked: Tensor | None
    amax: Tensor | None


def _next_phases(generators: Sequence[Iterator[Phase]]) -> list[Phase]:
    phases = [next(generator, None) for generator in generators]
    present = [phase for phase in phases if phase is not None]
    if present and len(present) < len(phases):
        raise ValueError("task.phases yielded more phases for one micro-batch than for another")
    return present


def _weights(batches: Sequence[Any]) -> list[float]:
    """Each micro-batch's share of the samples, so that a short tail counts for what it holds."""
    if len(batches) == 1:
        return [1.0]
    sizes = [num_samples(batch) for batch in batches]
    return [size / sum(sizes) for size in sizes]


def num_samples(batch: Any) -> int:
    """Length of the first tensor found in a batch; 1 where there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 1
    members = (
        batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    )
    return next((num_samples(member) for member in members), 1)


def _mean_metrics(metrics: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    return {
        name: torch.stack([each[name] * weight for each, weight in zip(metrics, weights, strict=True)]).sum()
        for name in metrics[0]
    }
