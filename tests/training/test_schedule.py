import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import nn
from torch.optim import Optimizer

from ampx.config.schedule import ScheduleSettings
from ampx.training.schedule import build_schedule

GROUP = Path(__file__).parents[2] / "conf" / "schedule"
CUSTOM = [
    ("torch.optim.lr_scheduler.ExponentialLR", {"gamma": 0.9}),
    ("torch.optim.lr_scheduler.OneCycleLR", {"max_lr": 0.1, "total_steps": 30}),
    ("torch.optim.lr_scheduler.MultiStepLR", {"milestones": [3, 6]}),
]


def load(name: str, **changes: Any) -> ScheduleSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return TypeAdapter(ScheduleSettings).validate_python({**values, **changes})


def not_a_scheduler(optimizer: Optimizer) -> Optimizer:
    return optimizer


def optimizer(*rates: float) -> Optimizer:
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "lr": lr} for lr in rates or (1e-3,)]
    return torch.optim.AdamW(groups, fused=True)


def test_skipped_steps_do_not_move_the_schedule_on_either_side() -> None:
    """INVARIANTS 7, BUGS 4 and 5; red when `advance_tensor` counts without looking at found_inf."""
    host, device = optimizer(), optimizer()
    on_host = build_schedule(load("cosine"), host, 10)
    on_device = build_schedule(load("cosine"), device, 10)
    for found_inf in (0.0, 1.0, 0.0, 1.0, 1.0, 0.0):
        rate = on_device.prepare_tensor()
        assert rate.item() == on_host.prepare()
        assert device.param_groups[0]["lr"] is rate
        if not found_inf:
            on_host.advance()
        on_device.advance_tensor(torch.tensor([found_inf]))
    assert on_host.state_dict() == on_device.state_dict() == {"applied": 3}


def test_a_noted_rate_is_not_overwritten_by_the_next() -> None:
    schedule = build_schedule(load("linear"), optimizer(), 10)
    first = schedule.prepare_tensor()
    value = first.item()
    schedule.advance_tensor(torch.tensor(0.0))
    schedule.prepare_tensor()
    assert first.item() == value


def test_every_group_keeps_its_own_base_rate() -> None:
    chosen = optimizer(1e-2, 1e-3, 1e-2)
    schedule = build_schedule(load("linear", warmup_steps=0), chosen, 4)
    schedule.advance()
    schedule.advance()
    schedule.prepare()
    rates = [group["lr"] for group in chosen.param_groups]
    assert rates == [torch.tensor(lr / 2).item() for lr in (1e-2, 1e-3, 1e-2)]


@pytest.mark.parametrize("gate", ["host", "device"])
def test_a_table_goes_on_where_it_was_under_the_new_rule(gate: str) -> None:
    saved = build_schedule(load("linear", warmup_steps=0), optimizer(), 10)
    for _ in range(4):
        if gate == "host":
            saved.advance()
        else:
            saved.advance_tensor(torch.zeros(1))
    fork = build_schedule(load("linear", warmup_steps=0), optimizer(1.0), 8)
    fork.advance_tensor(torch.zeros(1))
    fork.load_state_dict(saved.state_dict())
    assert fork.prepare() == fork.prepare_tensor().item() == 0.5


def test_loading_the_optimizer_does_not_detach_the_schedule() -> None:
    """Red when the schedule holds the group dicts: loading an optimizer makes new ones."""
    chosen = optimizer()
    schedule = build_schedule(load("linear", warmup_steps=0), chosen, 2)
    chosen.load_state_dict(chosen.state_dict())
    schedule.advance()
    schedule.prepare()
    assert chosen.param_groups[0]["lr"] == torch.tensor(5e-4).item()


@pytest.mark.parametrize(("target", "arguments"), CUSTOM)
def test_any_torch_scheduler_moves_on_applied_steps_only(target: str, arguments: dict[str, Any]) -> None:
    ours, theirs = optimizer(), optimizer()
    schedule = build_schedule(load("custom", _target_=target, **arguments), ours, None)
    name = target.rpartition(".")[2]
    reference = getattr(torch.optim.lr_scheduler, name)(theirs, **arguments)
    assert schedule.needs_host
    for found_inf in (0.0, 1.0, 0.0, 0.0, 1.0, 0.0):
        assert schedule.prepare() == theirs.param_groups[0]["lr"]
        schedule.prepare_tensor()
        for each in (ours, theirs):
            each.step()
        schedule.advance_tensor(torch.tensor([found_inf]))
        if not found_inf:
            reference.step()


@pytest.mark.parametrize(("target", "arguments"), CUSTOM)
def test_a_torch_scheduler_resumes_bit_for_bit_and_in_silence(target: str, arguments: dict[str, Any]) -> None:
    settings = load("custom", _target_=target, **arguments)
    first, second = optimizer(), optimizer()
    saved = build_schedule(settings, first, None)
    for _ in range(5):
        first.step()
        saved.advance()
    resumed = build_schedule(settings, second, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(saved.state_dict())
    assert [group["lr"] for group in second.param_groups] == [group["lr"] for group in first.param_groups]
    assert second.param_groups[0]["betas"] == first.param_groups[0]["betas"]


def test_a_fork_follows_its_own_rule_and_not_the_saved_one() -> None:
    first = optimizer(1.0)
    saved = build_schedule(load("custom", _target_=CUSTOM[0][0], gamma=0.9), first, None)
    for _ in range(2):
        first.step()
        saved.advance()
    fork = build_schedule(load("custom", _target_=CUSTOM[0][0], gamma=0.5), optimizer(1.0), None)
    fork.load_state_dict(saved.state_dict())
    assert fork.prepare() == 0.25


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "torch.optim.lr_scheduler.ReduceLROnPlateau",
            r"its step needs metrics, which the loop does not have",
        ),
        (
            f"{__name__}.not_a_scheduler",
            r"gave a AdamW; it must be or return a torch.optim.lr_scheduler.LRScheduler",
        ),
    ],
)
def test_what_is_no_schedule_of_steps_is_refused(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"schedule._target_={target}: {message}"):
        build_schedule(load("custom", _target_=target), optimizer(), None)
