from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ampx.config.dtype import DtypeSettings
from ampx.numerics.islands import apply_islands
from ampx.numerics.policy import PrecisionPolicy
from ampx.numerics.storage import check_trainable, set_storage

GROUP = Path(__file__).parents[2] / "conf" / "dtype"
PURE = ["bf16_pure", "fp16_pure"]


def policy(name: str, **changes: Any) -> PrecisionPolicy:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return PrecisionPolicy.from_settings(DtypeSettings.model_validate({**values, **changes}), "cpu")


class Net(nn.Module):
    """Has every kind of tensor that storage must tell apart."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.head.weight
        self.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.wide = nn.Parameter(torch.ones(4, dtype=torch.float64), requires_grad=False)
        self.register_buffer("positions", torch.ones(4))
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).mean((2, 3)) + self.positions
        return self.tied(self.head(x))


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_mixed_and_full_precision_store_float32(name: str) -> None:
    model = Net().bfloat16()
    claim = set_storage(model, policy(name))
    assert {p.dtype for p in model.parameters()} == {torch.float32, torch.complex64}
    assert claim["running_statistics"] == {"float32": 2}


@pytest.mark.parametrize("name", PURE)
def test_a_pure_policy_stores_everything_low_but_running_statistics(name: str) -> None:
    """INVARIANTS 26; red when BatchNorm is not told from the rest: CPU kernels raise on mixed dtypes."""
    chosen, model = policy(name), Net()
    low = chosen.param_dtype
    claim = set_storage(model, chosen)
    assert model.conv.weight.dtype == model.head.weight.dtype == model.positions.dtype == low
    statistics = (model.norm.weight, model.norm.bias, model.norm.running_mean, model.norm.running_var)
    assert {tensor.dtype for tensor in statistics if tensor is not None} == {torch.float32}
    assert claim == {
        "parameters": {"complex64": 1, "float64": 1, str(low)[6:]: 3, "float32": 2},
        "buffers": {str(low)[6:]: 1, "int64": 2, "float32": 2},
        "running_statistics": {"float32": 2},
    }


@pytest.mark.parametrize("name", PURE)
def test_a_large_deviation_leaves_finite_running_statistics(name: str) -> None:
    """INVARIANTS 26: in float16 the variance of a deviation of 1000 is inf."""
    chosen, model = policy(name), nn.BatchNorm1d(2)
    set_storage(model, chosen)
    output = model(chosen.cast_batch(1000 * torch.randn(64, 2)))
    assert output.dtype == chosen.param_dtype
    assert model.running_var is not None
    assert 5e4 < model.running_var.min() < torch.inf


@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize("is_training", [True, False])
def test_a_stored_model_runs_forward_and_backward(name: str, is_training: bool) -> None:
    """INVARIANTS 25: a gradient has its parameter's dtype."""
    chosen = policy(name)
    model = Net().train(is_training)
    set_storage(model, chosen)
    output = model(chosen.cast_batch(torch.randn(2, 1, 4, 4)))
    assert output.dtype == chosen.param_dtype
    output.float().sum().backward()
    for parameter in (model.conv.weight, model.norm.weight, model.head.weight):
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype


def test_tensors_stay_the_same_objects_shared_and_frozen_as_before() -> None:
    """Red when storage makes new parameters: tied weights would part, hooks would be lost."""
    model = Net()
    model.head.weight.requires_grad_(False)
    before = {name: id(p) for name, p in model.named_parameters()}
    set_storage(model, policy("bf16_pure"))
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert model.tied.weight is model.head.weight
    assert not model.head.weight.requires_grad


def test_buffers_stay_as_built_where_the_policy_leaves_them() -> None:
    model = Net()
    set_storage(model, policy("bf16_pure", buffer_dtype=None))
    assert model.positions.dtype == torch.float32


@pytest.mark.parametrize("name", PURE)
def test_an_island_of_a_pure_policy_is_stored_in_its_own_dtype(name: str) -> None:
    chosen = policy(name, islands=["1", "1.0:bfloat16"])
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    weights = [p.detach().clone() for p in model.parameters()]
    set_storage(model, chosen)
    apply_islands(model, chosen)
    stored: list[Any] = list(model.parameters())
    expected = [chosen.param_dtype] * 2 + [torch.bfloat16] * 2 + [torch.float32] * 2
    assert [p.dtype for p in stored] == expected
    assert torch.equal(stored[4], weights[4]), "a float32 island must not pass through the low dtype"
    assert model(chosen.cast_batch(torch.ones(1, 2))).dtype == chosen.compute_dtype


def test_a_mixed_policy_keeps_islands_in_float32_and_casts_as_it_runs() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    set_storage(model, policy("fp32", islands=["0:float16"]))
    assert model[0].weight.dtype == torch.float32


def test_a_tied_weight_cannot_live_in_two_dtypes() -> None:
    with pytest.raises(ValueError, match=r"head.weight .* tied.weight .* are one tensor; make both modules"):
        set_storage(Net(), policy("bf16_pure", islands=["tied"]))


@pytest.mark.parametrize(("dtype", "value"), [("fp16_pure", 70000.0), ("bf16_pure", -3.4e38)])
def test_a_value_that_would_become_infinite_is_refused(dtype: str, value: float) -> None:
    model = Net()
    model.positions.fill_(value)
    with pytest.raises(
        ValueError, match=r"positions holds .* name its module in dtype.islands, or set dtype.buffer"
    ):
        set_storage(model, policy(dtype))


def test_an_infinite_mask_stays_infinite() -> None:
    model = Net()
    model.positions.fill_(-torch.inf)
    set_storage(model, policy("fp16_pure"))
    assert torch.isneginf(model.positions).all()


def test_float16_gradients_cannot_be_unscaled_without_masters() -> None:
    """BUGS 9, INVARIANTS 25; red when only the first parameter is looked at."""
    bare, mastered = policy("fp16_pure", masters="none"), policy("fp16_pure")
    model = Net()
    set_storage(model, bare)
    with pytest.raises(ValueError, match=r"conv.weight, conv.bias, head.weight .* set dtype.masters=float32"):
        check_trainable(model, bare, is_scaled=True)
    check_trainable(model, mastered, is_scaled=True)
    check_trainable(model, bare, is_scaled=False)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    check_trainable(model, bare, is_scaled=True)
