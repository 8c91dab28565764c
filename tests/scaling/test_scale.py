import math
import pickle
import warnings

import pytest
import torch

from ampx.scaling.policies import Dynamic, Hysteresis, LogMax, Static, Tolerance
from ampx.scaling.scale import LossScale

POLICIES = [
    Dynamic(growth_interval=3),
    Static(),
    Hysteresis(growth_interval=3, hysteresis=2),
    Tolerance(growth_interval=3, tolerance=0.4),
    LogMax(),
]
by_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


def advance(scale, pattern):
    """Scales after each update; `x` in the pattern is an overflow, `.` a clean update."""
    trace = []
    for index, sign in enumerate(pattern):
        scale.advance_(torch.tensor(float(sign == "x")), torch.tensor(0.01 * (index + 1)))
        trace.append(scale.tensor.item())
    return trace


@by_policy
def test_a_saved_state_is_restored_field_by_field_and_continues_the_same_trace(policy, tmp_path):
    """INVARIANTS 14, BUGS 18: through a file that unpickles nothing. Red when a field is left out."""
    saved = LossScale(policy, 4096.0)
    advance(saved, "..x.")
    torch.save(saved.state_dict(), tmp_path / "scaler.pt")
    restored = LossScale(policy, 8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored.load_state_dict(torch.load(tmp_path / "scaler.pt", weights_only=True))
    assert restored.state == saved.state
    assert [field.dtype for field in restored.state] == [field.dtype for field in saved.state]
    assert advance(restored, "x..x....x") == advance(saved, "x..x....x")


@by_policy
def test_a_pickled_scale_is_an_independent_equal(policy):
    original = LossScale(policy, 4096.0)
    advance(original, "..x.")
    copy = pickle.loads(pickle.dumps(original))
    assert copy.state == original.state
    assert advance(copy, "..xx..") == advance(original, "..xx..")


def test_a_restored_scale_keeps_the_constructors_hyperparameters_and_says_so_once():
    """BUGS 18: a resumed sweep arm must run its own settings. Red when the saved factors are taken over."""
    saved = LossScale(Dynamic(growth_interval=2000, backoff_factor=0.8), 4096.0).state_dict()
    scale = LossScale(Dynamic(growth_interval=300), 8.0)
    with pytest.warns(UserWarning, match="keeps this scaler's own") as caught:
        scale.load_state_dict(saved)
    assert scale.policy == Dynamic(growth_interval=300)
    assert scale.tensor.item() == 4096.0
    assert [str(warning.message) for warning in caught] == [
        "load_state_dict keeps this scaler's own backoff_factor=0.5 (saved: 0.8), growth_interval=300"
        " (saved: 2000)"
    ]


def test_a_restored_scale_is_brought_within_the_present_bounds():
    """Red without the clamp in `readmit`: torch saves a scale that has collapsed below any floor."""
    scale = LossScale(Dynamic(min_scale=1.0), 8.0)
    scale.load_state_dict(torch.amp.GradScaler("cpu", init_scale=0.125).state_dict())
    assert scale.tensor.item() == 1.0


def test_a_state_of_another_policy_is_refused():
    saved = LossScale(Hysteresis(), 4096.0).state_dict()
    with pytest.raises(
        ValueError, match=r"under the scale policy hysteresis.*or start from init_scale=4096.0"
    ):
        LossScale(Dynamic(), 8.0).load_state_dict(saved)


@pytest.mark.parametrize("damage", [{"scale": math.nan}, {"scale": None}, {"_growth_tracker": "three"}])
def test_a_damaged_state_is_refused_and_nothing_is_loaded(damage):
    scale = LossScale(Dynamic(), 8.0)
    before = scale.state
    with pytest.raises(ValueError, match="is no finite number; the state is damaged, use another checkpoint"):
        scale.load_state_dict(scale.state_dict() | damage)
    assert scale.state is before


@pytest.mark.parametrize("init_scale", [0.0, -1.0, math.inf, math.nan, 1e39, 1e-40])
def test_an_impossible_init_scale_is_refused(init_scale):
    with pytest.raises(
        ValueError, match=r"init_scale=.*must be a finite, positive float32; 65536 suits most"
    ):
        LossScale(Dynamic(), init_scale)


def test_an_init_scale_out_of_bounds_is_refused():
    with pytest.raises(
        ValueError, match=r"init_scale=0.5: must lie within min_scale=1.0 and .* widen the bounds"
    ):
        LossScale(Static(min_scale=1.0), 0.5)


def test_a_set_scale_stays_within_the_bounds():
    scale = LossScale(Dynamic(max_scale=64.0), 8.0)
    scale.set_(32.0)
    assert scale.tensor.item() == 32.0
    with pytest.raises(ValueError, match=r"new_scale=128.0: must lie within"):
        scale.set_(128.0)
    scale.set_(torch.tensor([128.0]))
    assert scale.tensor.item() == 64.0
    assert scale.tensor.shape == ()


def test_a_set_scale_must_be_one_number():
    with pytest.raises(ValueError, match="a number or a 1-element tensor with requires_grad=False"):
        LossScale(Dynamic(), 8.0).set_(torch.ones(2))


def test_a_hyperparameter_that_the_policy_lacks_is_refused():
    with pytest.raises(ValueError, match="the scale policy static has no growth_factor; choose one that has"):
        LossScale(Static(), 8.0).set_hyperparameter("growth_factor", 2.0)
    with pytest.raises(ValueError, match=r"growth_factor=0.5: must be finite and greater than 1"):
        LossScale(Dynamic(), 8.0).set_hyperparameter("growth_factor", 0.5)


def test_the_inverse_is_rounded_once_from_float64():
    scale = LossScale(Static(), 3.0)
    assert scale.inverse().item() == torch.tensor(1 / 3, dtype=torch.float32).item()
