import math
import random

import pytest
import torch

from ampx.scaling.policies import LogMax

CLEAN, OVERFLOW = torch.tensor(0.0), torch.tensor(1.0)


def run(policy, amaxes, state=None):
    state = policy.init_state(1.0) if state is None else state
    for amax in amaxes:
        state = policy.advance(policy.settings, state, CLEAN, torch.tensor(amax))
    return state


def reference(policy, amaxes):
    """Exponentially weighted moments of log2(amax), written as explicit weighted sums."""
    logs = [math.log2(amax) for amax in reversed(amaxes)]

    def weighted(values, beta):
        weights = [beta**age for age in range(len(values))]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    slow_mean = weighted(logs, policy.beta2)
    deviation = math.sqrt(max(weighted([x * x for x in logs], policy.beta2) - slow_mean**2, 0.0))
    return 2.0 ** (16 - weighted(logs, policy.beta1) - policy.std_dev * deviation)


def test_the_scale_follows_the_bias_corrected_moments_of_log2_amax():
    """Red without bias correction, with one beta for both moments, and with `std_dev` dropped.

    Float64 moments over at most 200 updates lose far less than the 2**-24 of the final rounding.
    """
    draw = random.Random(3)
    policy = LogMax(std_dev=2.0, beta1=0.9, beta2=0.97)
    for length in (1, 2, 17, 200):
        amaxes = [float(torch.tensor(2.0 ** draw.gauss(-6, 1.5))) for _ in range(length)]
        assert run(policy, amaxes).scale.item() == pytest.approx(reference(policy, amaxes), rel=1e-6)


def test_a_constant_amax_is_scaled_to_the_float16_limit():
    assert run(LogMax(), [2.0**-10] * 5).scale.item() == pytest.approx(2.0**26, rel=1e-6)


def test_an_overflow_backs_off_and_leaves_the_statistics_alone():
    """The overflowed amax says nothing. Red when it enters the mean: NaN there stays for ever."""
    policy = LogMax()
    before = run(policy, [0.5, 0.25])
    after = policy.advance(policy.settings, before, OVERFLOW, torch.tensor(math.nan))
    assert after.scale.item() == before.scale.item() * policy.backoff_factor
    assert after[1:] == before[1:]


def test_a_gradient_of_zeros_changes_nothing():
    """log2(0) is -inf. Red without `amax > 0`."""
    before = run(LogMax(), [0.5, 0.25])
    assert run(LogMax(), [0.0], before) == before


@pytest.mark.parametrize("amax", [1e-38, 3e38])
def test_the_scale_stays_a_normal_float32_at_any_amax(amax):
    """INVARIANTS 10. Red without the clamp of the proposal: 2**16 / 1e-38 is inf in float32."""
    scale = run(LogMax(), [amax, 1.0, amax]).scale
    assert torch.finfo(torch.float32).tiny <= scale.item() < math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"std_dev": -1.0}, "std_dev=-1.0: must be finite and at least 0; 3.09"),
        ({"beta1": 1.0}, "beta1=1.0: must be at least 0 and below 1; 0.99"),
        ({"beta2": -0.1}, "beta2=-0.1: must be at least 0 and below 1"),
        ({"backoff_factor": 2.0}, "backoff_factor=2.0: must lie between 0 and 1"),
    ],
)
def test_nonsense_is_refused_with_the_way_out(arguments, message):
    with pytest.raises(ValueError, match=message):
        LogMax(**arguments)
