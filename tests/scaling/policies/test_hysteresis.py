import random

import pytest
import torch

from ampx.scaling.policies import Dynamic, Hysteresis


def trace(policy, init_scale, pattern):
    """Scales after each update; `x` in the pattern is an overflow, `.` a clean update."""
    state = policy.init_state(init_scale)
    scales = []
    for sign in pattern:
        state = policy.advance(policy.settings, state, torch.tensor(float(sign == "x")))
        scales.append(state.scale.item())
    return scales


def reference(policy, init_scale, pattern):
    """The published rule in plain Python numbers, independent of the tensor code."""
    scale, clean, allowed, scales = init_scale, 0, policy.hysteresis, []
    for sign in pattern:
        if sign == "x":
            clean, allowed = 0, allowed - 1
            scale *= policy.backoff_factor if allowed <= 0 else 1.0
        else:
            clean += 1
            if policy.consecutive:
                allowed = policy.hysteresis
            if clean == policy.growth_interval:
                clean, allowed, scale = 0, policy.hysteresis, scale * policy.growth_factor
        scales.append(scale)
    return scales


def test_the_second_overflow_backs_off_and_so_does_every_later_one():
    assert trace(Hysteresis(hysteresis=2), 64.0, "x..x.x") == [64.0, 64.0, 64.0, 32.0, 32.0, 16.0]


def test_growth_grants_the_forgiven_overflows_anew():
    """Red without `is_due` in the grant: the third overflow would back off."""
    policy = Hysteresis(hysteresis=2, growth_interval=2)
    assert trace(policy, 64.0, "xx..xx") == [64.0, 32.0, 32.0, 64.0, 64.0, 32.0]


def test_consecutive_forgives_isolated_overflows_for_ever():
    """Red without `consecutive` in the grant, as the second overflow would back off."""
    assert trace(Hysteresis(hysteresis=2, consecutive=True), 64.0, "x.x.x.xx") == [64.0] * 7 + [32.0]


@pytest.mark.parametrize("consecutive", [False, True])
@pytest.mark.parametrize("hysteresis", [1, 2, 5])
def test_random_traces_equal_the_published_rule(hysteresis, consecutive):
    draw = random.Random(hysteresis)
    policy = Hysteresis(growth_interval=4, hysteresis=hysteresis, consecutive=consecutive)
    for _ in range(10):
        pattern = draw.choices(".x", weights=[3, 1], k=60)
        assert trace(policy, 65536.0, pattern) == reference(policy, 65536.0, pattern)


def test_a_hysteresis_of_one_is_the_dynamic_rule():
    pattern = random.Random(0).choices(".x", weights=[3, 1], k=200)
    assert trace(Hysteresis(1.7, 0.3, 4, hysteresis=1), 100.0, pattern) == trace(
        Dynamic(1.7, 0.3, 4), 100.0, pattern
    )


def test_a_state_saved_under_a_larger_hysteresis_forgives_no_more_than_the_new_one():
    policy = Hysteresis(hysteresis=2)
    assert policy.readmit(Hysteresis(hysteresis=9).init_state(1.0)).hysteresis_tracker.item() == 2


def test_a_hysteresis_below_one_is_refused():
    with pytest.raises(ValueError, match="hysteresis=0: must be a whole number of at least 1; 1 backs off"):
        Hysteresis(hysteresis=0)
