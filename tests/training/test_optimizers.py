from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import nn
from torch.optim import Optimizer

from ampx.config.optimizer import OptimizerSettings
from ampx.training.optimizers import build_optimizers, own_parameters, supports_device_gate

GROUP = Path(__file__).parents[2] / "conf" / "optimizer"
BUILTIN = ["adamw", "adam", "sgd", "adagrad"]


def load(name: str, **changes: Any) -> OptimizerSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return TypeAdapter(OptimizerSettings).validate_python({**values, **changes})


def build(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    return build_optimizers(settings, own_parameters(model, {"main": model.parameters()}))["main"]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def not_an_optimizer(params: list[Any]) -> list[Any]:
    return params


def factory(params: list[Any], lr: float) -> Optimizer:
    return torch.optim.SGD(params, lr=lr)


@pytest.mark.parametrize("name", BUILTIN)
def test_every_builtin_is_fused_here_and_takes_a_step(name: str) -> None:
    model = net()
    optimizer = build(load(name), model)
    assert {group["fused"] for group in optimizer.param_groups} == {True}
    before = model[0].weight.detach().clone()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


@pytest.mark.parametrize("name", BUILTIN)
def test_a_fused_step_skips_on_the_device_and_takes_a_tensor_learning_rate(name: str) -> None:
    """INVARIANTS 5; red when `supports_device_gate` also accepts an optimizer that is not fused."""
    model = net()
    optimizer: Any = build(load(name), model)
    assert supports_device_gate(optimizer)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    model(torch.ones(2, 4)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    for found_inf, moves in ((1.0, False), (0.0, True)):
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(found_inf)
        optimizer.step()
        assert (not torch.equal(model[0].weight, before[0])) is moves


def test_an_optimizer_that_is_not_torchs_fused_kernel_needs_the_host() -> None:
    class Wrapped(torch.optim.AdamW):
        """Overrides what a fused step would do."""

    assert not supports_device_gate(build(load("adamw", fused=False), net()))
    assert not supports_device_gate(build(load("custom", _target_="torch.optim.RMSprop"), net()))
    assert not supports_device_gate(Wrapped(net().parameters(), fused=True))
    assert supports_device_gate(build(load("custom", _target_="torch.optim.AdamW", fused=True), net()))


def test_fused_is_chosen_only_where_torch_has_the_kernel() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    assert not build(load("adam"), model).param_groups[0]["fused"]
    with pytest.raises(
        ValueError, match=r"fused=true: .* no fused adam for torch.complex64 on cpu; .*fused=auto"
    ):
        build(load("adam", fused=True), model)


def test_norms_and_biases_do_not_decay() -> None:
    matrices, vectors = build(load("adamw", weight_decay=0.1), net()).param_groups
    assert ({p.ndim for p in matrices["params"]}, matrices["weight_decay"]) == ({2}, 0.1)
    assert ({p.ndim for p in vectors["params"]}, vectors["weight_decay"]) == ({1}, 0.0)


@pytest.mark.parametrize("changes", [{"no_decay": False}, {"weight_decay": 0}])
def test_one_group_is_enough_where_decay_is_the_same_for_all(changes: dict[str, Any]) -> None:
    assert len(build(load("adamw", **changes), net()).param_groups) == 1


def test_a_custom_optimizer_gets_groups_only_if_it_decays() -> None:
    assert len(build(load("custom", _target_="torch.optim.RMSprop", lr=0.1), net()).param_groups) == 2
    assert len(build(load("custom", _target_="torch.optim.Rprop"), net()).param_groups) == 1


def test_a_function_may_build_the_optimizer() -> None:
    settings = load("custom", _target_=f"{__name__}.factory", lr=0.5)
    assert build(settings, net()).param_groups[0]["lr"] == 0.5


def test_each_named_optimizer_has_its_own_settings() -> None:
    settings = load("adamw", by_name={"critic": {"lr": 0.5}})
    optimizers = build_optimizers(settings, {"main": net().parameters(), "critic": net().parameters()})
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in optimizers.items()}
    assert rates == {"main": 1e-3, "critic": 0.5}


def test_frozen_parameters_are_left_out() -> None:
    model = net()
    model[0].requires_grad_(False)
    owned = own_parameters(model, {"main": model.parameters()})
    optimizer = build_optimizers(load("sgd"), owned)["main"]
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == {p for p in model.parameters() if p.requires_grad}


def test_a_tied_weight_is_owned_once() -> None:
    model = net()
    assert len(own_parameters(model, {"main": [*model.parameters(), model[0].weight]})["main"]) == 6


def test_every_trainable_parameter_has_one_owner() -> None:
    model = net()
    stranger = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"0.weight is in 'a' and 'b'; give it to one of them"):
        own_parameters(model, {"a": model.parameters(), "b": [model[0].weight]})
    with pytest.raises(ValueError, match=r"nothing trains 0.weight, 0.bias; give .* requires_grad_\(False\)"):
        own_parameters(model, {"main": [*model[1].parameters(), *model[2].parameters()]})
    with pytest.raises(ValueError, match=r"shape \(3,\) that is not the model's; make it part of the model"):
        own_parameters(model, {"main": [*model.parameters(), stranger]})


def test_what_cannot_be_built_says_its_way_out() -> None:
    frozen = net().requires_grad_(False)
    with pytest.raises(ValueError, match=r"'main' has no trainable parameter; drop it, or unfreeze its part"):
        build(load("adamw"), frozen)
    with pytest.raises(ValueError, match=r"by_name.mian: the task's optimizers are main; did you mean main"):
        build(load("adamw", by_name={"mian": {"lr": 1}}), net())
    with pytest.raises(ValueError, match=r"optimizer: gave a list; optimizer._target_ must be or return"):
        build(load("custom", _target_=f"{__name__}.not_an_optimizer"), net())


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    """FACTS: a scaler that is handed a closure silently misbehaves."""
    with pytest.raises(ValueError, match=r"LBFGS: its step evaluates the loss again .* needs no closure"):
        build(load("custom", _target_="torch.optim.LBFGS"), net())


@pytest.mark.parametrize("name", ["adamw", "adam", "adagrad"])
def test_an_eps_that_float16_cannot_hold_is_refused(name: str) -> None:
    """INVARIANTS 24: Adam's 1e-8 is 0 in float16. Red when any float16 group is let through."""
    model = net().half()
    with pytest.raises(
        ValueError, match=r"float16 parameters: it is 0 .* dtype.masters=float32 or optimizer.eps"
    ):
        build(load(name), model)
    build(load(name, eps=1e-4), model)
    build(load(name), net().bfloat16())


@pytest.mark.parametrize("name", BUILTIN)
def test_fused_and_plain_steps_agree(name: str) -> None:
    """To a few float32 roundings of each of the ten updates."""
    start = net()
    finals: list[list[torch.Tensor]] = []
    for fused in (True, False):
        model = net()
        model.load_state_dict(start.state_dict())
        optimizer = build(load(name, fused=fused), model)
        for index in range(10):
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        finals.append([p.detach() for p in model.parameters()])
    for fused_value, plain_value in zip(*finals, strict=True):
        torch.testing.assert_close(fused_value, plain_value, rtol=1e-5, atol=1e-5)
