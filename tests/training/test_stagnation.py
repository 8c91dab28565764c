"""The share of low-precision entries that a step leaves as they were."""

import pytest
import torch
from torch import nn

from ampx.training.stagnation import Stagnation


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_share_counts_entries_over_all_parameters(dtype: torch.dtype) -> None:
    """BUGS 25. Red when it averages over tensors: 1/2 of one and 1/6 of another are not 2/8."""
    parameters = [nn.Parameter(torch.ones(size, dtype=dtype)) for size in (2, 6)]
    stagnation = Stagnation(parameters)
    stagnation.before()
    with torch.no_grad():
        for parameter in parameters:
            parameter[1:] += 1
    assert stagnation.share() == 2 / 8


def test_an_update_below_half_a_step_of_bfloat16_is_seen_to_be_lost() -> None:
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    stagnation = Stagnation([parameter])
    stagnation.before()
    parameter.data += 1e-3
    assert stagnation.share() == 1.0


def test_each_share_needs_its_own_copy_and_float32_costs_none() -> None:
    """Red when the copy is kept: the second share would compare with a step long past."""
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    stagnation = Stagnation([parameter])
    stagnation.before()
    assert stagnation.share() == 1.0
    assert stagnation.share() is None
    wide = Stagnation([nn.Parameter(torch.ones(4))])
    wide.before()
    assert wide.share() is None
