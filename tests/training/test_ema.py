import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ampx.config.dtype import DtypeSettings
from ampx.numerics.policy import PrecisionPolicy
from ampx.training.ema import Ema, build_ema
from ampx.training.masters import Masters, build_masters

GROUP = Path(__file__).parents[2] / "conf" / "dtype"


def policy(name: str, **changes: Any) -> PrecisionPolicy:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return PrecisionPolicy.from_settings(DtypeSettings.model_validate({**values, **changes}), "cpu")


def masters_of(model: nn.Module, chosen: PrecisionPolicy, rounding: Any = "nearest") -> Masters:
    return build_masters(model.parameters(), chosen, rounding=rounding, seed=0)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))


def averages(ema: Ema) -> list[Tensor]:
    return list(ema.state_dict()["averages"].values())


def walk(model: nn.Module, index: int) -> None:
    """Moves the weights by a step that depends on the index alone."""
    generator = torch.Generator().manual_seed(index)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


def test_host_and_device_move_the_average_by_the_same_bits() -> None:
    """INVARIANTS 7; red when `update_tensor` ignores `applied`."""
    model = net()
    masters = [masters_of(model, policy("fp32"))]
    host, device = build_ema(model, 0.9, masters), build_ema(model, 0.9, masters)
    for index, applied in enumerate((1.0, 0.0, 1.0, 1.0, 0.0, 1.0)):
        walk(model, index)
        if applied:
            host.update()
        device.update_tensor(torch.tensor(applied))
        for left, right in zip(averages(host), averages(device), strict=True):
            assert torch.equal(left.view(torch.int32), right.view(torch.int32))


def test_the_average_is_the_textbooks() -> None:
    """Against float64, to two float32 roundings a step."""
    model = net()
    ema = build_ema(model, 0.9, [])
    expected = model[0].weight.detach().double().clone()
    for index in range(20):
        walk(model, index)
        ema.update()
        expected = 0.9 * expected + 0.1 * model[0].weight.detach().double()
    amax = expected.abs().max()
    margin = 20 * 2 * torch.finfo(torch.float32).eps * amax
    assert (averages(ema)[0].double() - expected).abs().max() <= margin


def test_the_average_of_bfloat16_weights_moves_at_a_decay_of_0_999() -> None:
    """INVARIANTS 27; red when the average is kept in the parameter's dtype: it stands still."""
    model = nn.Linear(4, 4, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    ema = build_ema(model, 0.999, [masters_of(model, policy("bf16_pure"))])
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        ema.update()
    assert averages(ema)[0].dtype == torch.float32
    expected = 2 - 0.999**100
    assert (averages(ema)[0] - expected).abs().max() <= 100 * 2 * torch.finfo(torch.float32).eps * 2


def test_the_average_follows_the_masters_where_there_are_any() -> None:
    model = nn.Linear(4, 4, bias=False).bfloat16()
    masters = masters_of(model, policy("bf16_pure", masters="float32"))
    with torch.no_grad():
        masters.parameters[0].fill_(1 + 2**-12)  # bfloat16 would say 1
    ema = build_ema(model, 0.5, [masters])
    ema.update()
    assert averages(ema)[0].unique().item() == 1 + 2**-12


@pytest.mark.parametrize("rounding", ["stochastic", "kahan"])
def test_the_average_follows_the_model_where_copies_live_for_a_step_only(rounding: str) -> None:
    model = nn.Linear(4, 4, bias=False).bfloat16()
    ema = build_ema(model, 0.5, [masters_of(model, policy("bf16_pure"), rounding)])
    nn.init.constant_(model.weight, 3.0)
    for _ in range(60):
        ema.update()
    assert (averages(ema)[0] - 3).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_holds_the_average_inside_and_its_own_weights_after(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 4).to(dtype)
    ema = build_ema(model, 0.9, [])
    walk(model, 0)
    ema.update()
    own = copy.deepcopy(model.state_dict())

    def fail_in_evaluation() -> None:
        with torch.inference_mode(), ema.swapped(model):
            for average, parameter in zip(averages(ema), model.parameters(), strict=True):
                assert torch.equal(parameter, average.to(dtype))
            raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        fail_in_evaluation()
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    model(torch.ones(1, 4, dtype=dtype)).sum().backward()


def test_frozen_parameters_and_buffers_are_the_models_own() -> None:
    model = net()
    model[0].requires_grad_(False)
    assert list(build_ema(model, 0.9, []).state_dict()["averages"]) == ["1.weight", "1.bias"]


def test_a_reloaded_average_goes_on_bit_for_bit() -> None:
    model = net()
    whole = build_ema(model, 0.9, [])
    walk(model, 0)
    whole.update()
    resumed = build_ema(model, 0.9, [])
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    walk(model, 1)
    whole.update()
    resumed.update()
    for left, right in zip(averages(whole), averages(resumed), strict=True):
        assert torch.equal(left, right)


def test_off_changes_nothing_and_saves_nothing() -> None:
    model = net()
    ema = build_ema(model, None, [])
    before = copy.deepcopy(model.state_dict())
    ema.update()
    ema.update_tensor(torch.tensor(1.0))
    with ema.swapped(model):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert ema.state_dict() == {}
