import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampx.scaling.policies import Dynamic

CLEAN, OVERFLOW = torch.tensor(0.0), torch.tensor(1.0)


def trace(policy, init_scale, found_infs):
    state = policy.init_state(init_scale)
    scales = []
    for found_inf in found_infs:
        state = policy.advance(policy.settings, state, found_inf)
        scales.append(state.scale.item())
    return scales


def test_the_scale_grows_after_exactly_the_interval_and_any_overflow_restarts_the_count():
    """INVARIANTS 9. Red with `clean_updates > growth_interval`, and when overflow leaves the count alone."""
    policy = Dynamic(growth_interval=3)
    pattern = [CLEAN, OVERFLOW, CLEAN, CLEAN, CLEAN, CLEAN]
    assert trace(policy, 8.0, pattern) == [8.0, 4.0, 4.0, 4.0, 8.0, 8.0]


def test_growth_that_float32_cannot_hold_is_left_out():
    """INVARIANTS 10. Red when `grow` returns the product without looking: the scale becomes inf."""
    assert trace(Dynamic(growth_interval=1), 2.0**127, [CLEAN, CLEAN]) == [2.0**127, 2.0**127]


@settings(max_examples=300, deadline=None)
@given(
    scale=st.floats(2.0**-126, 2.0**127, width=32),
    tracker=st.integers(0, 9),
    overflowed=st.booleans(),
    growth_factor=st.floats(1.0, 1e6, exclude_min=True),
    backoff_factor=st.floats(1e-6, 1.0, exclude_max=True),
    bounds=st.tuples(st.floats(0.0, 1e30), st.floats(1e-30, math.inf)).filter(
        lambda pair: pair[0] <= pair[1]
    ),
)
def test_the_pure_function_equals_torchs_kernel_bit_for_bit(
    scale, tracker, overflowed, growth_factor, backoff_factor, bounds
):
    """Red with float32 arithmetic in `grow` or in the backoff, and without the clamp in `advance_`."""
    policy = Dynamic(growth_factor, backoff_factor, 10, min_scale=bounds[0], max_scale=bounds[1])
    found_inf = OVERFLOW if overflowed else CLEAN
    start = policy.init_state(scale)._replace(growth_tracker=torch.tensor(tracker, dtype=torch.int32))
    pure = policy.advance(policy.settings, start, found_inf)
    in_place = policy.advance_(policy.settings, start, found_inf, None)
    assert pure.scale.item() == in_place.scale.item()
    assert pure.growth_tracker.item() == in_place.growth_tracker.item()
    assert pure.scale.dtype == torch.float32
    assert pure.growth_tracker.dtype == torch.int32


def test_a_count_beyond_a_shortened_interval_grows_at_the_next_clean_update():
    """torch's kernel compares for equality, and would never grow. Red without the clamp in `readmit`."""
    policy = Dynamic(growth_interval=3)
    state = policy.init_state(8.0)._replace(growth_tracker=torch.tensor(1999, dtype=torch.int32))
    state = policy.advance_(policy.settings, policy.readmit(state), CLEAN, None)
    assert (state.scale.item(), state.growth_tracker.item()) == (16.0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"growth_factor": 1.0}, "growth_factor=1.0: must be finite and greater than 1; use 2.0"),
        ({"growth_factor": math.inf}, "growth_factor=inf: must be finite"),
        ({"growth_factor": math.nan}, "growth_factor=nan: must be finite"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0: must lie between 0 and 1.*use 0.5"),
        ({"backoff_factor": 0.0}, "backoff_factor=0.0: must lie between 0 and 1"),
        ({"backoff_factor": math.nan}, "backoff_factor=nan: must lie between 0 and 1"),
        ({"growth_interval": 0}, "growth_interval=0: must be a whole number of at least 1; use 2000"),
        ({"growth_interval": 2.5}, "growth_interval=2.5: must be a whole number"),
    ],
)
def test_nonsense_is_refused_with_the_way_out(arguments, message):
    with pytest.raises(ValueError, match=message):
        Dynamic(**arguments)
