"""n is the number of draws. The margin of a mean is six of its standard errors: one false alarm in 5e8."""

import pytest
import torch
from torch import Tensor

from ampx.numerics.rounding import round_stochastically, split_compensated

MAX = torch.finfo(torch.bfloat16).max


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("value", [1.0 + 2**-9, -1.0 - 3 * 2**-10, 0.3, -1e-3, 3e38, 1.2345e-39, 2.0**-133])
def test_the_mean_of_many_roundings_is_the_value(value: float) -> None:
    """Red when the noise is not centred, or has 15 bits: a bias of 0.5 steps, or of 0.25."""
    n = 40_000
    x = torch.full((n,), value)
    rounded = round_stochastically(x, generator()).double()
    low, high = rounded.min(), rounded.max()
    step = (high - low).item()
    exact = float(x[0])
    share = (exact - low.item()) / step if step else 0.0
    margin = 6 * step * (share * (1 - share) / n) ** 0.5
    assert low <= exact <= high
    assert abs(rounded.mean().item() - exact) <= margin + 1e-12 * abs(exact)


def test_each_value_goes_to_one_of_its_two_neighbours() -> None:
    x = torch.randn(20_000) * torch.logspace(-40, 38, 20_000)
    rounded = round_stochastically(x, generator()).float()
    below = (x.view(torch.int32) & -65536).view(torch.float32)
    above = ((x.view(torch.int32) & -65536) + 65536).view(torch.float32)
    assert ((rounded == below) | (rounded == above)).all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0,)])
def test_representable_values_stay(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).bfloat16()
    assert torch.equal(round_stochastically(x.float(), generator()), x)


def test_what_is_not_finite_stays_so() -> None:
    """Red without the mask: CUDA's NaN, all mantissa bits set, would wrap round to -0."""
    nans = torch.tensor([0x7FFFFFFF, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    infs = torch.tensor([torch.inf, -torch.inf])
    for _ in range(20):
        assert round_stochastically(nans, torch.Generator()).isnan().all()
        assert torch.equal(round_stochastically(infs, torch.Generator()).float(), infs)


def test_a_finite_value_below_the_largest_never_overflows() -> None:
    x = torch.full((10_000,), MAX).nextafter(torch.tensor(0.0))
    assert round_stochastically(x, generator()).isfinite().all()
    assert torch.equal(
        round_stochastically(-torch.full((9,), MAX), generator()).float(), -torch.full((9,), MAX)
    )


def test_the_same_generator_state_gives_the_same_bits() -> None:
    x = torch.randn(1000)
    assert torch.equal(round_stochastically(x, generator()), round_stochastically(x, generator()))


def test_layout_does_not_matter() -> None:
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    rounded = round_stochastically(x, generator())
    assert ((rounded.float() - x).abs() <= 2**-7 * x.abs()).all()


def values() -> Tensor:
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 - 2**-9, -1 - 2**-8, 2 - 2**-9, 0.0, 2.0**-130])
    return torch.cat([ties, torch.randn(20_000) * torch.logspace(-30, 30, 20_000)])


def test_a_split_loses_less_than_sixteen_bits_do() -> None:
    x = values()
    value, remainder = split_compensated(x)
    error = (value.double() + remainder.double() - x.double()).abs()
    assert (error <= 2**-17 * x.double().abs() + 2.0**-149).all()


def test_splitting_a_split_again_changes_no_bit() -> None:
    """Red with one `_split` alone: a remainder of half a step rounds the value the other way."""
    value, remainder = split_compensated(values())
    again = split_compensated(value.float() + remainder.float())
    assert torch.equal(again[0], value)
    assert torch.equal(again[1], remainder)


def test_nothing_remains_of_what_is_not_finite() -> None:
    value, remainder = split_compensated(torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38]))
    assert value.float()[:2].tolist() == [torch.inf, -torch.inf]
    assert value[2].isnan()
    assert remainder.tolist() == [0, 0, 0, 0]
