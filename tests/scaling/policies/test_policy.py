"""What holds for every family."""

import math
import pickle
import random

import pytest
import torch

from ampx.scaling.policies import Dynamic, Hysteresis, LogMax, Static, Tolerance

FAMILIES = [Dynamic, Static, Hysteresis, Tolerance, LogMax]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def draw_policy(family, draw):
    bounds = {"min_scale": draw.choice([0.0, 1.0, 300.0]), "max_scale": draw.choice([2e4, 1e9, math.inf])}
    factors = {"growth_factor": draw.uniform(1.01, 4.0), "backoff_factor": draw.uniform(0.1, 0.99)}
    counting = factors | {"growth_interval": draw.randint(1, 6)}
    own = {
        Dynamic: counting,
        Static: {},
        Hysteresis: counting | {"hysteresis": draw.randint(1, 4), "consecutive": draw.random() < 0.5},
        Tolerance: counting | {"tolerance": draw.random()},
        LogMax: {"std_dev": draw.uniform(0.0, 4.0), "beta1": draw.random(), "beta2": draw.random()},
    }
    return family(**own[family], **bounds)


def stacked(tuples):
    return type(tuples[0])(*(torch.stack(column) for column in zip(*tuples, strict=True)))


def bit_equal(left, right):
    same_type = left.dtype == right.dtype
    as_bits = BITS.get(left.dtype, left.dtype)
    return same_type and torch.equal(left.view(as_bits), right.view(as_bits))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_settings_at_once_equal_the_same_ones_one_by_one(family):
    """Bit for bit, each candidate with its own overflows. Red when a rule branches or reads a number."""
    draw = random.Random(11)
    policies = [draw_policy(family, draw) for _ in range(1000)]
    settings = stacked([policy.settings for policy in policies])
    start = [policy.init_state(draw.uniform(300.0, 2e4)) for policy in policies]
    batch, singles = stacked(start), start
    for _ in range(12):
        found_infs = (torch.rand(1000) < 0.3).float()
        amax = torch.rand(()) if draw.random() < 0.9 else torch.zeros(())
        batch = family.advance(settings, batch, found_infs, amax)
        singles = [
            policy.advance(policy.settings, state, found_inf, amax)
            for policy, state, found_inf in zip(policies, singles, found_infs.unbind(), strict=True)
        ]
    assert all(bit_equal(*pair) for pair in zip(batch, stacked(singles), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_scale_never_leaves_its_bounds(family):
    """INVARIANTS 10. Red when `bounded` leaves out either bound."""
    draw = random.Random(5)
    for _ in range(40):
        policy = draw_policy(family, draw)
        state = policy.init_state(draw.uniform(300.0, 2e4))
        for _ in range(40):
            found_inf = torch.tensor(float(draw.random() < draw.choice([0.0, 0.5, 1.0])))
            state = policy.advance(policy.settings, state, found_inf, torch.rand(()) + 1e-9)
            assert policy.min_scale <= state.scale.item() <= policy.max_scale


@pytest.mark.parametrize("family", FAMILIES)
def test_advance_changes_neither_its_settings_nor_its_state(family):
    policy = family()
    settings, state = policy.settings, policy.init_state(1024.0)
    copies = pickle.loads(pickle.dumps((settings, state)))
    family.advance(settings, state, torch.tensor(1.0), torch.tensor(0.5))
    assert (settings, state) == copies


@pytest.mark.parametrize("family", FAMILIES)
def test_advance_keeps_the_dtypes_of_the_state(family):
    policy = family()
    before = policy.init_state(1024.0)
    after = policy.advance(policy.settings, before, torch.tensor(0.0), torch.tensor(0.5))
    assert [field.dtype for field in after] == [field.dtype for field in before]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_pickles_and_compares_by_value(family):
    policy = family(min_scale=2.0)
    assert pickle.loads(pickle.dumps(policy)) == policy != family()


def test_within_keeps_the_narrower_of_two_bounds():
    policy = Static(min_scale=4.0, max_scale=64.0)
    assert policy.within(1.0, 32.0) == Static(min_scale=4.0, max_scale=32.0)
    with pytest.raises(
        ValueError, match=r"max_scale=2.0: must be positive and at least min_scale=4.0; raise max"
    ):
        policy.within(0.0, 2.0)


@pytest.mark.parametrize("min_scale", [-1.0, math.inf, math.nan])
def test_a_floor_that_is_no_floor_is_refused(min_scale):
    with pytest.raises(ValueError, match=r"min_scale=.*must be finite and at least 0; 1 is a usual floor"):
        Dynamic().within(min_scale, math.inf)
