"""INVARIANTS 1-8, 12, 34 and 35, and BUGS 1, 7, 8, 12 and 13, on models small enough to work out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampx.training.lane import NoGradientError

Build = Callable[..., Any]
GATES = pytest.mark.parametrize("gate", ["host", "device"])


def linear(value: float = 1.0) -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def batch(*rows: float, target: float = 0.0) -> tuple[Tensor, Tensor]:
    x = torch.tensor([[row, 1.0] for row in rows])
    return x, torch.full((len(rows), 1), target)


@GATES
def test_an_update_at_a_scale_equals_the_update_without(gate: str, build_rig: Build) -> None:
    """INVARIANTS 2, BUGS 13: clip before unscaling and the scaled arm moves 1/S as far."""
    rigs = [build_rig(linear(), gate=gate, init_scale=scale, clip_norm=0.5) for scale in (None, 2.0**10)]
    for rig in rigs:
        rig.attempt(0, batch(1.0, 2.0))
    assert torch.equal(rigs[0].model.weight, rigs[1].model.weight)


@GATES
def test_micro_batches_of_any_size_equal_one_batch(gate: str, build_rig: Build) -> None:
    """INVARIANTS 3, BUGS 7: weigh the parts equally, not by samples, and the short tail counts double."""
    whole = build_rig(linear(), gate=gate, init_scale=256.0)
    parts = build_rig(linear(), gate=gate, init_scale=256.0)
    (whole_record,) = whole.attempt(0, batch(1.0, 2.0, 3.0))
    (parts_record,) = parts.attempt(0, batch(1.0, 2.0), batch(3.0))
    eps = torch.finfo(torch.float32).eps
    assert parts.model.weight.detach() == pytest.approx(whole.model.weight.detach(), rel=8 * eps)
    assert parts_record.loss == pytest.approx(whole_record.loss, rel=8 * eps)


@GATES
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("init_scale", [None, 16.0])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_nonfinite_gradient_leaves_everything_as_it_was(
    gate: str, bad: float, init_scale: float | None, optimizer: Any, build_rig: Build
) -> None:
    """INVARIANTS 5 and 7, BUGS 1 and 30: without the gate in bf16 and fp32 the weights turn NaN."""
    rig = build_rig(
        linear(), gate=gate, init_scale=init_scale, clip_norm=1.0,
        optimizer=lambda parameters: optimizer(parameters, lr=0.1, fused=True), ema_decay=0.5,
    )  # fmt: skip
    rig.attempt(0, batch(1.0))
    before, schedule = rig.state(), rig.lanes["main"].schedule.state_dict()
    (record,) = rig.attempt(1, batch(bad))
    assert all(torch.equal(old, new) for old, new in zip(before, rig.state(), strict=True))
    assert rig.lanes["main"].schedule.state_dict() == schedule
    assert (record.applied, record.found_inf, record.skip_reason) == (False, True, "nonfinite_loss")
    assert rig.scaler.get_scale() == (8.0 if init_scale else 1.0)


@GATES
def test_one_optimizer_steps_while_another_skips_and_the_scale_backs_off_once(
    gate: str, build_rig: Build
) -> None:
    """INVARIANTS 6 and 8: update the scale per optimizer and it quarters."""
    model = nn.ModuleDict({"good": linear(1.0), "bad": linear(float("inf"))})
    rig = build_rig(model, gate=gate, init_scale=64.0, names=("good", "bad"))
    good, bad = rig.attempt(0, batch(1.0))
    assert (good.applied, bad.applied) == (True, False)
    assert not torch.equal(model["good"].weight, linear(1.0).weight)
    assert rig.scaler.get_scale() == 32.0
    assert [good.scale, bad.scale] == [64.0, 64.0]


@GATES
def test_batch_norm_statistics_survive_a_skipped_step(gate: str, build_rig: Build) -> None:
    """BUGS 12: without the guard running_mean is NaN for ever."""
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    rig = build_rig(model, gate=gate)
    rig.attempt(0, batch(1.0, 2.0, 3.0))
    before = [buffer.clone() for buffer in model[1].buffers()]
    rig.attempt(1, batch(1.0, float("inf"), 3.0))
    assert all(torch.equal(old, new) for old, new in zip(before, model[1].buffers(), strict=True))
    rig.attempt(2, batch(1.0, 2.0, 4.0))
    assert not torch.equal(before[0], model[1].running_mean)


@GATES
def test_a_finite_gradient_whose_norm_overflows_is_clipped_and_applied(gate: str, build_rig: Build) -> None:
    """INVARIANTS 34: clip by the infinite norm and it is zero; call it found_inf and it is skipped."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    rig = build_rig(model, gate=gate, clip_norm=1.0)
    (record,) = rig.attempt(0, (torch.tensor([[1e20, 1e20]]), torch.tensor([[1.0]])))
    assert record.applied
    assert record.grad_norm == pytest.approx(2 * 2**0.5 * 1e20, rel=1e-5)
    assert model.weight.detach().norm() == pytest.approx(0.1, rel=1e-4)  # lr × clip_norm


@GATES
def test_a_norm_beyond_float32_is_told_of_and_the_step_applied(gate: str, build_rig: Build) -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    rig = build_rig(model, gate=gate, clip_norm=1.0)
    (record,) = rig.attempt(0, (torch.tensor([[1.5e38, 1.5e38]]), torch.tensor([[1.0]])))
    assert record.applied
    assert rig.overflows[0][:2] == (0, "main")
    assert model.weight.detach().norm() == pytest.approx(0.1, rel=1e-4)


def test_a_step_without_any_gradient_names_the_parameters(build_rig: Build) -> None:
    """INVARIANTS 35, BUGS 8."""
    model = nn.ModuleDict({"used": linear(), "unused": linear()})
    rig = build_rig(model, names=("used", "unused"))
    model["unused"].forward = lambda x: x.sum(dim=1, keepdim=True).requires_grad_()  # type: ignore[assignment]
    with pytest.raises(NoGradientError, match=r"optimizer 'unused': no parameter received a gradient"):
        rig.attempt(0, batch(1.0))


def test_a_phase_for_an_unknown_optimizer_says_which_there_are(build_rig: Build) -> None:
    rig = build_rig(linear())
    rig.stepper.task.names = ("discriminator",)
    rig.stepper.task.phases = lambda model, batch: iter(  # type: ignore[method-assign]
        [type("Phase", (), {"optimizer": "discriminator", "forward": None, "loss": None})()]
    )
    with pytest.raises(
        ValueError, match=r"asks for optimizer 'discriminator', but task.optimizers gave \['main'\]"
    ):
        rig.attempt(0, batch(1.0))


def test_the_record_holds_the_scale_and_the_count_that_the_attempt_used(build_rig: Build) -> None:
    """Read after the update and step 1 would show 32 and 0."""
    rig = build_rig(linear(), init_scale=16.0, growth_interval=2)
    records = [rig.attempt(step, batch(1.0))[0] for step in range(3)]
    assert [(record.scale, record.growth_tracker) for record in records] == [(16, 0), (16, 1), (32, 0)]


class Averaging(nn.Module):
    """Keeps a running mean the way people write it: by a new tensor in the buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("average", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.layer(x)


@GATES
def test_a_buffer_that_a_forward_replaces_survives_too(gate: str, build_rig: Build) -> None:
    """Look at version counters alone and the replaced tensor is missed."""
    model = Averaging()
    rig = build_rig(model, gate=gate)
    rig.attempt(0, batch(1.0, 2.0))
    before = model.average.clone()
    rig.attempt(1, batch(float("inf")))
    assert torch.equal(model.average, before)
    rig.attempt(2, batch(3.0))
    rig.attempt(3, batch(float("inf")))
    assert torch.equal(model.average, 0.9 * before + 0.1 * torch.tensor([3.0, 1.0]))


@GATES
def test_a_metric_may_be_a_plain_number(gate: str, build_rig: Build) -> None:
    rig = build_rig(linear(), gate=gate)
    loss = rig.stepper.task.phases

    def phases(model: nn.Module, data: Any) -> Any:
        for phase in loss(model, data):
            yield type(phase)(
                phase.optimizer, phase.forward, lambda out, p=phase: (p.loss(out)[0], {"count": 3})
            )

    rig.stepper.task.phases = phases
    (record,) = rig.attempt(0, batch(1.0))
    assert record.metrics == {"count": 3.0}


def test_host_and_device_gates_give_the_same_bits(build_rig: Build) -> None:
    """Through overflow, growth, clipping and EMA: a trace of 60 steps with a non-finite one in five."""
    traces = []
    for gate in ("host", "device"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        rig = build_rig(
            model, gate=gate, init_scale=2.0**12, growth_interval=3, clip_norm=0.3, ema_decay=0.9,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
        )  # fmt: skip
        rows = torch.randn(60, 4).tolist()
        for step in range(0, 60, 5):
            rows[step][1] = float("inf")
        records = [rig.attempt(step, batch(*row))[0] for step, row in enumerate(rows)]
        ema = list(rig.stepper.ema.state_dict()["averages"].values())
        traces.append((records, [*rig.state(), *ema]))
    (host_records, host_state), (device_records, device_state) = traces
    assert host_records == device_records
    assert all(torch.equal(left, right) for left, right in zip(host_state, device_state, strict=True))
