"""Host and device gates give the same bits in whatever a config may assemble, through skips of every kind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

from ampx.config.experiment import ExperimentConfig
from ampx.spec import DataSpec
from ampx.tasks.task import Phase

Assemble = Callable[..., Any]
STEPS = 45
RMSPROP, EXPONENTIAL = "torch.optim.RMSprop", "torch.optim.lr_scheduler.ExponentialLR"
CUSTOM = ("model=custom", f"model._target_={__name__}.Net", "data=custom", f"data._target_={__name__}.data")
COMMON = (f"train.max_steps={STEPS}", "train.ema_decay=0.9", "train.clip_norm=0.5", "train.max_epochs=null")
DUEL = ("task=custom", f"task._target_={__name__}.Duel", f"model._target_={__name__}.Duelists")


class Burst(torch.autograd.Function):
    """Leaves a parameter as it is; its gradient is infinite where the batch says so."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, is_burst: Tensor) -> Tensor:
        ctx.save_for_backward(is_burst)
        return parameter.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (is_burst,) = ctx.saved_tensors
        return torch.where(is_burst, torch.inf, grad), None


class Net(nn.Module):
    """BatchNorm, whose statistics a bad batch would spoil, and a bias whose gradient bursts on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3, bias=False)
        )
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[:, 1:]) + Burst.apply(self.bias, x[0, 0] != 0)


class Duelists(nn.ModuleDict):
    def __init__(self) -> None:
        super().__init__({"left": Net(), "right": Net()})


class Duel:
    """Two optimizers, as a GAN has; the second never sees the mark that makes a gradient burst."""

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        x, labels = batch
        calm = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], dim=1)

        def loss(out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return nn.functional.cross_entropy(out, labels), {}

        yield Phase("left", lambda: model.get_submodule("left")(x), loss)
        yield Phase("right", lambda: model.get_submodule("right")(calm), loss)

    def optimizers(self, model: nn.Module) -> dict[str, Any]:
        return {name: model.get_submodule(name).parameters() for name in ("left", "right")}

    def evaluate(self, model: nn.Module, batches: Any) -> dict[str, float]:
        return {}


def data() -> Any:
    """Of 45 batches every seventh holds a NaN, and every fifth makes a gradient infinite, the loss finite."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(STEPS, 8, 7, generator=generator)
    labels = torch.randint(3, (STEPS, 8), generator=generator)
    x[:, :, 0] = 0.0
    x[4::5, :, 0] = 1.0
    x[3::7, 2, 3] = torch.nan
    batches = list(zip(x, labels, strict=True))
    return batches, batches[:1], DataSpec((7,), num_classes=3)


def leaves(state: Any) -> dict[str, Any]:
    return {str(path): leaf for path, leaf in tree_flatten_with_path(state)[0]}


@pytest.mark.parametrize(
    "overrides",
    [
        ["dtype=fp32"],
        ["dtype=fp32", "optimizer=sgd", "schedule=linear", "train.grad_accumulation=2"],
        ["dtype=fp32", "optimizer=adagrad", "schedule=none", "train.clip_norm=null"],
        ["dtype=bf16", "optimizer=adam"],
        ["dtype=fp16", "scaler.growth_interval=3", "scaler.init_scale=2**28"],
        ["dtype=fp16", "scaler=logmax"],
        ["dtype=fp16", "scaler=hysteresis", "scaler.growth_interval=3", "scaler.hysteresis=2"],
        ["dtype=fp16", "scaler=tolerance", "scaler.growth_interval=3"],
        ["dtype=bf16_pure", "optimizer.rounding=stochastic"],
        ["dtype=bf16_pure", "optimizer.rounding=kahan"],
        ["dtype=bf16_pure", "optimizer=sgd"],
        ["dtype=fp16_pure", "scaler.growth_interval=3", "optimizer=sgd"],
        ["dtype=fp32", *DUEL],
        ["dtype=fp16", *DUEL, "scaler.growth_interval=2", "scaler.init_scale=2**27"],
    ],
    ids=lambda overrides: " ".join(word for word in overrides if "_target_" not in word),
)
def test_host_and_device_gates_leave_the_same_bits(overrides: list[str], assemble_run: Assemble) -> None:
    """Records, parameters, buffers, moments, masters, schedule, scale, EMA, totals and random generators.

    Red when DeviceGate counts the schedule, moves the EMA or keeps the buffers without looking at found_inf.
    """
    host, device = (
        assemble_run(*CUSTOM, *COMMON, *overrides, f"train.gate={gate}") for gate in ("host", "device")
    )
    assert (host.state.stepper.gate.name, device.state.stepper.gate.name) == ("host", "device")
    torch.manual_seed(0)
    host_records, host_state = host.attempt(STEPS), leaves(host.state.state_dict())
    torch.manual_seed(0)
    device_records, device_state = device.attempt(STEPS), leaves(device.state.state_dict())
    assert host_records == device_records
    assert host_state.keys() == device_state.keys()
    for name, value in host_state.items():
        if isinstance(value, Tensor):
            assert value.dtype == device_state[name].dtype, name
            assert torch.equal(value, device_state[name]), name
        else:
            assert value == device_state[name], name
    assert {record.skip_reason for record in host_records} >= {None, "nonfinite_loss", "inf_grad"}
    assert all(tensor.isfinite().all() for tensor in host.state.setup.model.state_dict().values())


def test_one_of_two_optimizers_skips_and_what_is_shared_follows_the_other(assemble_run: Assemble) -> None:
    """INVARIANTS 6 and 7 as a GAN meets them. Red when the EMA needs every phase to be applied."""
    run = assemble_run(*CUSTOM, *COMMON, *DUEL, "dtype=fp16", "train.gate=device", "scaler.init_scale=256")
    run.attempt(4)  # the fourth holds a NaN for both
    before = {name: value.clone() for name, value in run.state.ema.state_dict()["averages"].items()}
    weights = {name: p.detach().clone() for name, p in run.state.setup.model.named_parameters()}
    left, right = run.attempt(1)
    assert (left.applied, right.applied, left.scale, right.scale) == (False, True, 128.0, 128.0)
    assert run.state.scaler.get_scale() == 64.0
    moved = {
        name for name, p in run.state.setup.model.named_parameters() if not torch.equal(p, weights[name])
    }
    assert {name.partition(".")[0] for name in moved} == {"right"}
    averages = run.state.ema.state_dict()["averages"]
    assert {name for name in before if not torch.equal(before[name], averages[name])} >= moved
    counts = {name: lane.schedule.state_dict()["applied"] for name, lane in run.state.lanes.items()}
    assert counts == {"left": 3, "right": 4}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.fused=false"], "optimizer.fused=false"),
        (["optimizer=custom", f"optimizer._target_={RMSPROP}", "+optimizer.lr=0.01"], "optimizer=custom"),
        (["schedule=custom", f"schedule._target_={EXPONENTIAL}", "+schedule.gamma=0.9"], "schedule=custom"),
    ],
)  # fmt: skip
def test_a_device_gate_that_cannot_be_is_refused(
    overrides: list[str], message: str, experiment: Callable[..., ExperimentConfig]
) -> None:
    with pytest.raises(ValueError, match=rf"train.gate=device with {message}.*use train.gate=auto"):
        experiment("train.gate=device", *overrides)


def test_an_optimizer_that_turns_out_unfused_is_refused_by_name(assemble_run: Assemble) -> None:
    """`fused=auto` is resolved only when the optimizer is built: here one of two optimizers is unfused."""
    with pytest.raises(
        ValueError, match=r"train.gate=device: optimizer right cannot skip.*or train.gate=auto"
    ):
        assemble_run(*CUSTOM, *COMMON, *DUEL, "train.gate=device", "+optimizer.by_name.right={fused: false}")


def test_auto_is_the_host_on_a_cpu(assemble_run: Assemble) -> None:
    assert assemble_run(*CUSTOM, *COMMON).state.stepper.gate.name == "host"
