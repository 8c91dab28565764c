"""A stepper around a model of a few numbers, so that every step can be worked out by hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampx.config.dtype import DtypeSettings
from ampx.config.experiment import ExperimentConfig
from ampx.numerics.policy import PrecisionPolicy
from ampx.scaling import LossScaler
from ampx.tasks.task import Phase
from ampx.track.record import StepRecord
from ampx.training.assemble import TrainState, assemble
from ampx.training.ema import build_ema
from ampx.training.gate import DeviceGate, HostGate
from ampx.training.guard import BufferGuard
from ampx.training.lane import Lane
from ampx.training.ledger import Ledger
from ampx.training.masters import NoMasters
from ampx.training.schedule import TableSchedule
from ampx.training.step import Stepper

FP32 = DtypeSettings(
    name="fp32", compute_dtype="float32", param_dtype="float32", buffer_dtype=None, reduce_dtype=None,
    scope="forward_loss", output_dtype=None, islands=(), cache_weights=True, kernels="native", masters="none",
    matmul_precision="highest",
)  # fmt: skip


class Regression:
    """Mean squared error of a model on `(x, y)`; one phase, or one for each of several optimizers."""

    def __init__(self, names: Sequence[str] = ("main",)) -> None:
        self.names = names

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        x, y = batch
        for name in self.names:
            part = model if self.names == ("main",) else model.get_submodule(name)
            yield Phase(name, lambda part=part: part(x), lambda out: ((out - y).square().mean(), {}))

    def optimizers(self, model: nn.Module) -> dict[str, Any]:
        if self.names == ("main",):
            return {"main": model.parameters()}
        return {name: model.get_submodule(name).parameters() for name in self.names}

    def evaluate(self, model: nn.Module, batches: Any) -> dict[str, float]:
        del model, batches
        return {}


@dataclass
class Rig:
    """A stepper with its parts in reach."""

    stepper: Stepper
    model: nn.Module
    scaler: LossScaler
    lanes: dict[str, Lane]
    records: list[StepRecord] = field(default_factory=list)
    overflows: list[tuple[int, str, float]] = field(default_factory=list)

    def attempt(self, step: int, *batches: Any) -> list[StepRecord]:
        """One attempt, flushed: its records."""
        self.stepper.attempt(step, list(batches))
        return self.stepper.ledger.flush()

    def state(self) -> list[Tensor]:
        """Copies of every parameter, buffer and optimizer tensor."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for lane in self.lanes.values():
            for state in lane.optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return [tensor.detach().clone() for tensor in tensors]


@pytest.fixture
def build_rig() -> Callable[..., Rig]:
    """`build_rig(model, gate="host", init_scale=8.0, …)`; a scaler only where init_scale is given."""

    def build(
        model: nn.Module,
        *,
        gate: str = "host",
        init_scale: float | None = None,
        growth_interval: int = 2000,
        clip_norm: float | None = None,
        names: Sequence[str] = ("main",),
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        ema_decay: float | None = None,
    ) -> Rig:
        task = Regression(names)
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True))
        lanes = {}
        for name, parameters in task.optimizers(model).items():
            owned = list(parameters)
            built = make(owned)
            lanes[name] = Lane(
                name=name, optimizer=built, masters=NoMasters(owned), model_parameters=owned,
                schedule=TableSchedule(built, torch.ones(1, dtype=torch.float64)),
                parameter_names=[f"{name}.{index}" for index in range(len(owned))],
            )  # fmt: skip
        scaler = LossScaler(
            "cpu", init_scale or 1.0, growth_interval=growth_interval, enabled=init_scale is not None
        )
        overflows: list[tuple[int, str, float]] = []
        stepper = Stepper(
            model=model, task=task, lanes=lanes, policy=PrecisionPolicy.from_settings(FP32, "cpu"),
            scaler=scaler, gate=HostGate() if gate == "host" else DeviceGate(),
            guard=BufferGuard(model.train()),
            ema=build_ema(model, ema_decay, [lane.masters for lane in lanes.values()]),
            ledger=Ledger([], lambda *seen: overflows.append(seen)), clip_norm=clip_norm,
        )  # fmt: skip
        return Rig(stepper, model, scaler, lanes, overflows=overflows)

    return build


@dataclass
class AssembledRun:
    """A run as a user's config assembles it, with its attempts in reach."""

    state: TrainState
    step: int = 0

    def attempt(self, count: int) -> list[StepRecord]:
        """So many more attempts, flushed: their records."""
        with self.state.setup.kernels.installed():
            for _ in range(count):
                self.state.stepper.attempt(self.step, self.state.feed.take())
                self.step += 1
        return self.state.ledger.flush()


@pytest.fixture
def assemble_run(experiment: Callable[..., ExperimentConfig]) -> Callable[..., AssembledRun]:
    """`assemble_run("dtype=fp16", …)` is what `ampx run dtype=fp16 …` trains with, before its first step."""

    def build(*overrides: str) -> AssembledRun:
        config = experiment(*overrides)
        state = assemble(config, torch.device("cpu"), observers=[], on_overflow=lambda *_seen: None)
        return AssembledRun(state)

    return build
