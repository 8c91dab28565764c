"""THE place where order is decided: from a config to everything that a training run needs.

seed → data → model → precision policy (storage, islands) → activation checkpointing → kernels →
device → optimizers → schedule → scaler → EMA. A transform returns its claims; the manifest holds them
against what the first step shows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampx.config.experiment import ExperimentConfig, scaler_is_active
from ampx.config.optimizer import settings_for
from ampx.data.build import build_data
from ampx.data.splits import Splits
from ampx.models.blocks import checkpoint_blocks
from ampx.models.build import build_model
from ampx.numerics.islands import apply_islands
from ampx.numerics.kernels import Kernels, choose_kernels
from ampx.numerics.policy import PrecisionPolicy
from ampx.numerics.storage import check_trainable, set_storage
from ampx.scaling import LossScaler, build_loss_scaler
from ampx.tasks.build import build_task
from ampx.tasks.task import Task
from ampx.track.record import Observer
from ampx.training.ema import Ema, build_ema
from ampx.training.feed import Feed
from ampx.training.gate import choose_gate
from ampx.training.guard import BufferGuard
from ampx.training.lane import Lane
from ampx.training.ledger import Ledger
from ampx.training.masters import build_masters
from ampx.training.optimizers import build_optimizers, own_parameters
from ampx.training.progress import Mode
from ampx.training.randomness import make_deterministic, random_state, restore_random_state, seed_everything
from ampx.training.schedule import build_schedule
from ampx.training.spans import Spans, no_spans
from ampx.training.step import Stepper
from ampx.training.weights import load_model


@dataclass(frozen=True, slots=True)
class Setup:
    """A model under its precision policy, with its data and its task: all that evaluation needs."""

    config: ExperimentConfig
    device: torch.device
    splits: Splits
    task: Task
    model: nn.Module
    policy: PrecisionPolicy
    kernels: Kernels
    claims: dict[str, Any]

    @property
    def islands(self) -> list[str]:
        """Names of the modules held in another dtype than the rest."""
        return list(self.claims["islands"])

    def monitor(self) -> tuple[str, Mode] | None:
        """The metric that the task says decides what is best."""
        return getattr(self.task, "monitor", None)


@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that training moves, and all of it that a checkpoint must hold."""

    setup: Setup
    feed: Feed
    lanes: dict[str, Lane]
    scaler: LossScaler
    ema: Ema
    ledger: Ledger
    stepper: Stepper
    planned_steps: int | None

    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by name."""
        return {name: lane.optimizer for name, lane in self.lanes.items()}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain Python types."""
        return {
            "model": self.setup.model.state_dict(),
            "lanes": {name: lane.state_dict() for name, lane in self.lanes.items()},
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.state_dict(),
            "feed": self.feed.state_dict(),
            "ledger": self.ledger.state_dict(),
            "random": random_state(),
            "precision": self.setup.config.dtype.model_dump(mode="json"),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Put everything back; the random generators last, since loading may draw from them."""
        load_model(self.setup.model, saved["model"], "checkpoint")
        for name, lane in self.lanes.items():
            lane.load_state_dict(saved["lanes"][name])
        if saved["scaler"]:  # a fork may switch scaling on: then it starts from init_scale
            self.scaler.load_state_dict(saved["scaler"])
        self.ema.load_state_dict(saved["ema"])
        self.feed.load_state_dict(saved["feed"])
        self.ledger.load_state_dict(saved["ledger"])
        restore_random_state(saved["random"])


def assemble_setup(config: ExperimentConfig, device: torch.device) -> Setup:
    """Build data, task and model, and put the model under its precision policy."""
    seed_everything(config.seed)
    if config.deterministic:
        make_deterministic()
    splits = build_data(config.data, seed=config.seed)
    task = build_task(config.task)
    model = build_model(config.model, splits.spec)
    policy = PrecisionPolicy.from_settings(config.dtype, device.type)
    claims: dict[str, Any] = {
        "baseline": policy.set_baseline()._asdict(),
        "storage": set_storage(model, policy),
        "islands": apply_islands(model, policy),
    }
    if config.train.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if config.train.activation_checkpointing:
        claims["checkpointed"] = checkpoint_blocks(model)
    dtype = config.dtype
    kernels = choose_kernels(dtype.kernels, uses_float16=dtype.uses_float16, device_type=device.type)
    return Setup(config, device, splits, task, model.to(device), policy, kernels, claims)


def assemble(
    config: ExperimentConfig,
    device: torch.device,
    *,
    observers: Sequence[Observer],
    on_overflow: Callable[[int, str, float], None],
    spans: Spans = no_spans,
) -> TrainState:
    """Build everything that training moves; `on_overflow` is the ledger's."""
    setup = assemble_setup(config, device)
    model, policy = setup.model, setup.policy
    check_trainable(model, policy, is_scaled=scaler_is_active(config))
    feed = _build_feed(setup)
    planned_steps = _planned_steps(config, feed)
    lanes = _build_lanes(setup, planned_steps)
    scaler = build_loss_scaler(config.scaler, device.type, active=scaler_is_active(config))
    ema = build_ema(model, config.train.ema_decay, [lane.masters for lane in lanes.values()])
    ledger = Ledger(observers, on_overflow)
    stepper = Stepper(
        model=model,
        task=setup.task,
        lanes=lanes,
        policy=policy,
        scaler=scaler,
        gate=choose_gate(config.train.gate, lanes, device),
        guard=BufferGuard(model),
        ema=ema,
        ledger=ledger,
        clip_norm=config.train.clip_norm,
        spans=spans,
    )
    return TrainState(setup, feed, lanes, scaler, ema, ledger, stepper, planned_steps)


def _build_feed(setup: Setup) -> Feed:
    config = setup.config
    return Feed(
        setup.splits.train,
        grad_accumulation=config.train.grad_accumulation,
        limit_batches=config.train.limit_batches,
        overfit_batches=config.debug.overfit_batches,
        device=setup.device,
        seed=config.seed,
    )


def _planned_steps(config: ExperimentConfig, feed: Feed) -> int | None:
    per_epoch, epochs = feed.steps_per_epoch, config.train.max_epochs
    limits = [
        config.train.max_steps,
        None if per_epoch is None or epochs is None else per_epoch * epochs,
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _build_lanes(setup: Setup, planned_steps: int | None) -> dict[str, Lane]:
    config, model = setup.config, setup.model
    owned = own_parameters(model, setup.task.optimizers(model))
    masters = {
        name: build_masters(
            parameters,
            setup.policy,
            rounding=settings_for(config.optimizer, name).rounding,
            seed=config.seed,
        )
        for name, parameters in owned.items()
    }
    optimizers = build_optimizers(config.optimizer, {name: each.parameters for name, each in masters.items()})
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        name: Lane(
            name=name,
            optimizer=optimizer,
            masters=masters[name],
            schedule=build_schedule(config.schedule, optimizer, planned_steps),
            model_parameters=owned[name],
            parameter_names=[names[parameter] for parameter in owned[name]],
        )
        for name, optimizer in optimizers.items()
    }
