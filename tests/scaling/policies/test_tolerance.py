import random

import pytest
import torch

from ampx.scaling.policies import Dynamic, Tolerance


def trace(policy, init_scale, pattern):
    """Scales after each update; `x` in the pattern is an overflow, `.` a clean update."""
    state = policy.init_state(init_scale)
    scales = []
    for sign in pattern:
        state = policy.advance(policy.settings, state, torch.tensor(float(sign == "x")))
        scales.append(state.scale.item())
    return scales


def reference(policy, init_scale, pattern):
    """fairseq's rule by absolute update numbers, as it is published; the tensor code keeps differences."""
    scale, overflows, scales = init_scale, 0, []
    last_overflow = last_rescale = -1
    for update, sign in enumerate(pattern):
        if sign == "x":
            last_overflow = update
            overflows += 1
            if overflows / (update - last_rescale) >= policy.tolerance:
                scale *= policy.backoff_factor
                last_rescale, overflows = update, 0
        elif (update - last_overflow) % policy.growth_interval == 0:
            scale *= policy.growth_factor
            last_rescale = update
        scales.append(scale)
    return scales


def test_overflows_below_the_tolerated_share_leave_the_scale_alone():
    """Red when the share is compared with `>` or the updates are not counted since the last rescale."""
    policy = Tolerance(tolerance=0.25)
    assert trace(policy, 64.0, "....x.x") == [64.0] * 6 + [32.0]
    assert trace(policy, 64.0, "...x") == [64.0] * 3 + [32.0]


@pytest.mark.parametrize("tolerance", [0.0, 0.1, 0.3, 1.0])
def test_random_traces_equal_the_published_rule(tolerance):
    draw = random.Random(7)
    policy = Tolerance(growth_interval=4, tolerance=tolerance)
    for _ in range(10):
        pattern = draw.choices(".x", weights=[3, 1], k=80)
        assert trace(policy, 65536.0, pattern) == reference(policy, 65536.0, pattern)


def test_no_tolerance_is_the_dynamic_rule():
    pattern = random.Random(0).choices(".x", weights=[3, 1], k=200)
    assert trace(Tolerance(1.7, 0.3, 4, tolerance=0.0), 100.0, pattern) == trace(
        Dynamic(1.7, 0.3, 4), 100.0, pattern
    )


@pytest.mark.parametrize("tolerance", [-0.1, 1.1, float("nan")])
def test_a_tolerance_that_is_no_share_is_refused(tolerance):
    with pytest.raises(
        ValueError, match=r"tolerance=.*must lie between 0 and 1; 0.05 tolerates one in twenty"
    ):
        Tolerance(tolerance=tolerance)
