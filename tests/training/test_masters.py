import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.config.dtype import DtypeSettings
from ampx.numerics.policy import PrecisionPolicy
from ampx.numerics.storage import set_storage
from ampx.training.masters import Masters, build_masters

GROUP = Path(__file__).parents[2] / "conf" / "dtype"


def policy(name: str, **changes: Any) -> PrecisionPolicy:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return PrecisionPolicy.from_settings(DtypeSettings.model_validate({**values, **changes}), "cpu")


def build(parameters: Iterable[nn.Parameter], kind: str) -> Masters:
    """Masters of one of the five kinds there are."""
    if kind == "off":
        return build_masters(parameters, policy("fp32"), rounding="nearest", seed=0)
    if kind == "float32":
        return build_masters(parameters, policy("bf16_pure", masters="float32"), rounding="nearest", seed=0)
    return build_masters(parameters, policy("bf16_pure"), rounding=kind, seed=0)  # pyright: ignore[reportArgumentType]


def step(masters: Masters, optimizer: torch.optim.Optimizer) -> None:
    masters.collect_gradients()
    optimizer.step()
    masters.store()
    masters.drop_gradients()


@pytest.mark.parametrize(
    ("kind", "expected", "margin"),
    [
        ("nearest", 1.0, 0.0),
        ("float32", 2.0, 2**-8),
        ("kahan", 2.0, 2**-8),
        # n = 1000 steps of 1e-3, each rounded to a multiple of 2^-7: six standard errors of their sum
        ("stochastic", 2.0, 6 * (1000 * 1e-3 * (2**-7 - 1e-3)) ** 0.5),
    ],
)
def test_a_thousand_small_updates_arrive(kind: str, expected: float, margin: float) -> None:
    """INVARIANTS 24, BUGS 25; red when `store` rounds to nearest and forgets."""
    weight = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    masters = build([weight], kind)
    optimizer = torch.optim.SGD(masters.parameters, lr=1e-3)
    for _ in range(1000):
        weight.grad = -torch.ones_like(weight)
        step(masters, optimizer)
    assert (weight.float() - expected).abs().max() <= margin


def test_kahan_follows_float32_to_within_what_sixteen_bits_lose() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(256).bfloat16())
    exact = nn.Parameter(weight.detach().double())
    masters = build([weight], "kahan")
    optimizer = torch.optim.SGD(masters.parameters, lr=1e-3)
    amax = weight.abs().max().item()
    for _ in range(200):
        grad = torch.randn(256)
        weight.grad = grad.bfloat16()
        with torch.no_grad():
            exact -= 1e-3 * weight.grad.double()
        step(masters, optimizer)
        amax = max(amax, exact.abs().max().item())
    lost = 200 * 2**-17 + 2**-8  # each store keeps about 16 bits, and the value alone shows 8
    assert (weight.double() - exact).abs().max() <= lost * amax


@pytest.mark.parametrize("kind", ["float32", "stochastic", "kahan"])
def test_what_did_not_change_is_stored_without_changing_a_bit(kind: str) -> None:
    """INVARIANTS 5: a step skipped on the device is stored too. Red when Kahan splits only once."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4096).bfloat16())
    masters = build([weight], kind)
    optimizer = torch.optim.SGD(masters.parameters, lr=1e-2)
    for _ in range(5):
        weight.grad = torch.randn(4096).bfloat16()
        step(masters, optimizer)
        before, state = weight.detach().clone(), copy.deepcopy(masters.state_dict())
        masters.collect_gradients()
        masters.store()
        assert torch.equal(weight, before)
        if kind == "kahan":
            assert torch.equal(masters.state_dict()["rule"]["remainders"][0], state["rule"]["remainders"][0])


@pytest.mark.parametrize("kind", ["float32", "stochastic", "kahan"])
def test_gradients_of_micro_batches_add_up_in_float32(kind: str) -> None:
    """INVARIANTS 3; red when they add up in the parameter's bfloat16: 256 + 1 is 256 there."""
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    masters = build([weight], kind)
    for value in (256.0, 1.0, 1.0, 1.0):
        weight.grad = torch.full_like(weight, value)
        masters.collect_gradients()
        assert weight.grad is None
    assert masters.parameters[0].grad is not None
    assert masters.parameters[0].grad.tolist() == [259.0, 259.0]


def test_float32_parameters_pass_through_and_low_ones_get_copies() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    set_storage(model, policy("bf16_pure"))
    masters = build(model.parameters(), "float32")
    low, bias, *norm = model.parameters()
    assert masters.parameters[2:] == norm
    assert [p.dtype for p in masters.parameters] == [torch.float32] * 4
    assert list(masters.copies) == [low, bias]


def test_off_is_the_parameters_themselves() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    masters = build([weight], "off")
    masters.collect_gradients()
    masters.store()
    masters.drop_gradients()
    assert masters.parameters == [weight]
    assert weight.grad is not None
    assert masters.state_dict() == {}


@pytest.mark.parametrize("kind", ["stochastic", "kahan"])
def test_copies_that_need_not_outlive_a_step_take_no_memory_between_steps(kind: str) -> None:
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    masters = build([weight], kind)
    copied = masters.parameters[0]
    assert (copied.shape, copied.untyped_storage().nbytes()) == ((8,), 0)
    weight.grad = torch.ones_like(weight)
    masters.collect_gradients()
    assert copied.untyped_storage().nbytes() == 32
    masters.store()
    assert copied.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("kind", ["stochastic", "kahan", "float32"])
def test_optimizer_state_is_float32(kind: str) -> None:
    """INVARIANTS 24."""
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    masters = build([weight], kind)
    optimizer = torch.optim.AdamW(masters.parameters)
    weight.grad = torch.ones_like(weight)
    step(masters, optimizer)
    assert {value.dtype for value in optimizer.state[masters.parameters[0]].values()} == {torch.float32}


@pytest.mark.parametrize("kind", ["off", "nearest", "float32", "stochastic", "kahan"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop", "Adafactor", "Adadelta"])
def test_a_reloaded_run_goes_on_bit_for_bit_with_any_optimizer(kind: str, name: str) -> None:
    """Red when the remainders, the generator or the copies are left out of the state."""

    def begin() -> tuple[nn.Linear, Masters, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(16, 8)
        if kind != "off":
            model.bfloat16()
        masters = build(model.parameters(), kind)
        return model, masters, getattr(torch.optim, name)(masters.parameters, lr=1e-2)

    def train(model: nn.Linear, masters: Masters, optimizer: Any, steps: range) -> None:
        for index in steps:
            inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(index))
            model(inputs.to(model.weight.dtype)).square().mean().backward()
            step(masters, optimizer)
            optimizer.zero_grad()

    whole = begin()
    train(*whole, range(6))
    first = begin()
    train(*first, range(3))
    saved = copy.deepcopy([part.state_dict() for part in first])
    second = begin()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    train(*second, range(3, 6))
    for expected, actual in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(expected, actual)
    assert str(whole[1].state_dict()) == str(second[1].state_dict())


def test_the_global_generator_is_not_touched_and_one_seed_rounds_alike() -> None:
    """Replicas must round alike though their dropout differs; red when noise comes from torch's generator."""
    stored: list[Tensor] = []
    for rank in (0, 1):
        torch.manual_seed(rank)
        before = torch.get_rng_state()
        weight = nn.Parameter(torch.ones(512, dtype=torch.bfloat16))
        masters = build([weight], "stochastic")
        optimizer = torch.optim.SGD(masters.parameters, lr=1e-3)
        weight.grad = torch.ones_like(weight)
        step(masters, optimizer)
        assert torch.equal(torch.get_rng_state(), before)
        stored.append(weight.detach())
    assert torch.equal(*stored)


def fit(masters_choice: str) -> tuple[float, float]:
    """First and last loss of pure float16 SGD from 1 to 1.01: updates of 2e-4, where half a step is 5e-4."""
    chosen = policy("fp16_pure", masters=masters_choice)
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    set_storage(model, chosen)
    masters = build_masters(model.parameters(), chosen, rounding="nearest", seed=0)
    optimizer = torch.optim.SGD(masters.parameters, lr=1e-2)
    inputs = torch.randn(16, 4)
    targets = 1.01 * inputs.sum(1, keepdim=True)
    history: list[float] = []
    for _ in range(150):
        loss = F.mse_loss(model(inputs.half()).float(), targets)
        loss.backward()
        step(masters, optimizer)
        optimizer.zero_grad()
        history.append(loss.item())
    return history[0], history[-1]


def test_float32_masters_train_pure_float16_where_it_stands_still_without() -> None:
    first, last = fit("float32")
    assert last < 0.1 * first
    assert fit("none") == (first, first)


@pytest.mark.parametrize("kind", ["float32", "stochastic", "kahan"])
def test_an_optimizer_without_low_precision_parameters_needs_no_copy(kind: str) -> None:
    weight = nn.Parameter(torch.ones(2))
    masters = build([weight], kind)
    weight.grad = torch.ones(2)
    step(masters, torch.optim.SGD(masters.parameters, lr=1.0))
    assert weight.tolist() == [0.0, 0.0]
