"""What the first step shows, held against what was asked: BUGS 20."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ampx.config.experiment import ExperimentConfig
from ampx.numerics.policy import PrecisionPolicy
from ampx.training.observed import FirstStep, PrecisionMismatchError


@pytest.fixture
def bf16(experiment: Callable[..., ExperimentConfig]) -> PrecisionPolicy:
    return PrecisionPolicy.from_settings(experiment("dtype=bf16").dtype, "cpu")


class HalfStubborn(nn.Module):
    """Its first layer computes as asked, its second in float32 whatever was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.willing = nn.Linear(2, 2)
        self.stubborn = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.willing(x)
        with torch.autocast("cpu", enabled=False):
            return self.stubborn(hidden.float())


def observe(model: nn.Module, islands: tuple[str, ...] = ()) -> FirstStep:
    first = FirstStep(model, islands)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(3, 2)).sum().backward()
    first.remove()
    return first


def test_it_reports_what_ran(bf16: PrecisionPolicy) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    first = observe(model)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    assert first.report({"main": optimizer}) == {
        "param_dtype": {"float32": 6},
        "compute_dtype": {"bfloat16": 2},
        "grad_dtype": {"float32": 6},
        "buffer_dtype": {"float32": 2},
        "output_dtype": ["bfloat16"],
        "optimizer_dtype": {"float32": 12},
    }
    assert first.check(bf16) == []


def test_one_layer_that_differs_is_a_note(bf16: PrecisionPolicy) -> None:
    assert observe(HalfStubborn()).check(bf16) == ["1 of 2 layers computed in float32: stubborn"]


def test_an_island_differs_on_purpose(bf16: PrecisionPolicy) -> None:
    assert observe(HalfStubborn(), islands=("stubborn",)).check(bf16) == []


def test_all_layers_that_differ_are_an_error(bf16: PrecisionPolicy) -> None:
    fp16 = dataclasses.replace(bf16, compute_dtype=torch.float16)
    with pytest.raises(
        PrecisionMismatchError, match="compute_dtype=float16: every layer computed in bfloat16"
    ):
        observe(nn.Linear(2, 1)).check(fp16)


def test_nothing_of_it_stays_on_the_model() -> None:
    model = nn.Linear(2, 1)
    observe(model)
    assert not model._forward_hooks
    assert not model.weight._post_accumulate_grad_hooks
