from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from ampx.config.schedule import BuiltinScheduleSettings
from ampx.training.factors import ScheduleTable, factors

GROUP = Path(__file__).parents[2] / "conf" / "schedule"
STEPS = 50


def load(name: str, **changes: Any) -> BuiltinScheduleSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return TypeAdapter(BuiltinScheduleSettings).validate_python({**values, **changes})


def torchs(build: Any, steps: int) -> Tensor:
    """The learning rates that a torch scheduler gives an optimizer with lr=1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler: LRScheduler = build(optimizer)
    rates: list[float] = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return torch.tensor(rates, dtype=torch.float64)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """To the rounding of torch's recursive formulas: one float64 eps a step."""
    assert (ours[: len(theirs)] - theirs).abs().max() <= len(theirs) * torch.finfo(torch.float64).eps


def test_cosine_is_torchs() -> None:
    ours = factors(load("cosine", warmup_steps=0, final_factor=0.1), STEPS)
    assert_same(ours, torchs(lambda o: CosineAnnealingLR(o, T_max=STEPS, eta_min=0.1), STEPS))


def test_linear_is_torchs() -> None:
    ours = factors(load("linear", warmup_steps=0, final_factor=0.1), STEPS)
    assert_same(ours, torchs(lambda o: LinearLR(o, 1.0, 0.1, total_iters=STEPS), STEPS))


def test_warm_up_then_cosine_is_torchs_sequence_of_both() -> None:
    def sequence(optimizer: Any) -> LRScheduler:
        rise = LinearLR(optimizer, 1 / 11, 1.0, total_iters=10)
        return SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, T_max=STEPS - 10)], [10])

    assert_same(factors(load("cosine", warmup_steps=10), STEPS), torchs(sequence, STEPS))


def test_warm_up_alone_is_torchs_lambda() -> None:
    ours = factors(load("constant", warmup_steps=10), None)
    theirs = torchs(lambda o: LambdaLR(o, lambda k: min(1.0, (k + 1) / 11)), 11)
    assert_same(ours, theirs)


def test_warm_up_may_be_a_share_of_the_run() -> None:
    assert torch.equal(
        factors(load("linear", warmup_fraction=0.2), STEPS), factors(load("linear", warmup_steps=10), STEPS)
    )


def test_no_schedule_is_one_for_ever() -> None:
    assert factors(load("none"), None).tolist() == [1.0]


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_run_ends_at_the_final_factor(name: str) -> None:
    ours = factors(load(name, warmup_steps=10, final_factor=0.25), STEPS)
    assert (len(ours), ours[10], ours[-1]) == (STEPS + 1, 1.0, 0.25)
    assert (ours[1:11] > ours[:10]).all()
    assert (ours[11:] < ours[10:-1]).all()


def test_a_run_shorter_than_its_warm_up_never_decays() -> None:
    ours = factors(load("cosine", warmup_steps=10), 5)
    assert torch.equal(ours, torch.arange(1, 12, dtype=torch.float64) / 11)


@pytest.mark.parametrize(
    ("name", "changes"), [("cosine", {}), ("linear", {}), ("constant", {"warmup_fraction": 0.1})]
)
def test_a_run_of_unknown_length_cannot_decay(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"schedule={name}: .* set train.max_steps, or schedule=constant"):
        factors(load(name, **changes), None)


def test_host_and_device_read_the_same_bits_also_past_the_end() -> None:
    table = ScheduleTable((1e-3 * factors(load("cosine"), STEPS)).float())
    for applied in (*range(STEPS + 1), STEPS + 7):
        on_device = table.at_tensor(torch.tensor(applied))
        assert on_device.shape == ()
        assert on_device.item() == table.at(applied)
    assert table.at(STEPS + 7) == table.at(STEPS)
