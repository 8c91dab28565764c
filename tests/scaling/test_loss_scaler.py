"""The drop-in: what torch.amp.GradScaler promises is asked of both classes by the same test bodies."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ampx.scaling import Dynamic, Hysteresis, LogMax, LossScaler, Static, Tolerance

INF, NAN = math.inf, math.nan
both = pytest.mark.parametrize("scaler_type", [torch.amp.GradScaler, LossScaler])
every_policy = pytest.mark.parametrize(
    "policy", [Dynamic(), Static(), Hysteresis(), Tolerance(), LogMax()], ids=lambda policy: policy.name
)


def weight_and_optimizer(optimizer_type=torch.optim.SGD, size=3, **arguments):
    weight = nn.Parameter(torch.ones(size))
    return weight, optimizer_type([weight], **{"lr": 0.5} | arguments)


def backward(scaler, weight, gradient):
    """A scaled backward after which the unscaled gradient of `weight` is `gradient` throughout."""
    weight.grad = None
    scaler.scale((weight * gradient).sum()).backward()


def iterate(scaler, weight, optimizer, gradient):
    backward(scaler, weight, gradient)
    scaler.step(optimizer)
    scaler.update()


def snapshot(optimizer):
    return copy.deepcopy([optimizer.state_dict(), [group["params"] for group in optimizer.param_groups]])


@settings(max_examples=1000, deadline=None)
@given(
    pattern=st.binary(min_size=4, max_size=24),
    init_scale=st.floats(2.0**-20, 2.0**127),
    growth_factor=st.floats(1.0001, 16.0),
    backoff_factor=st.floats(0.3, 0.9999),
    growth_interval=st.integers(1, 8),
    unscales_first=st.booleans(),
)
def test_the_default_traces_torch_bit_for_bit(
    pattern, init_scale, growth_factor, backoff_factor, growth_interval, unscales_first
):
    """INVARIANTS 9, 15: scale, count and weights after each step, and the pure rule's beside them.

    Red with growth one update late, with float32 arithmetic in the pure rule, and when skips are not counted.
    """
    arguments = (init_scale, growth_factor, backoff_factor, growth_interval)
    arms = [
        (kind("cpu", *arguments), *weight_and_optimizer(size=1))
        for kind in (torch.amp.GradScaler, LossScaler)
    ]
    rule = Dynamic(*arguments[1:])
    state = rule.init_state(init_scale)
    for byte in pattern:
        gradient = {0: INF, 1: NAN, 2: -INF}.get(byte % 8, 1e-3 * (1 + byte))
        for scaler, weight, optimizer in arms:
            weight.grad = scaler.scale(torch.tensor([gradient]))
            if unscales_first:
                scaler.unscale_(optimizer)
        state = rule.advance(rule.settings, state, ~arms[0][1].grad.isfinite().all())
        for scaler, _, optimizer in arms:
            scaler.step(optimizer)
            scaler.update()
        (theirs, their_weight, _), (ours, our_weight, _) = arms
        assert ours.get_scale() == theirs.get_scale() == state.scale.item()
        assert (
            ours.growth_tracker_tensor.item() == theirs._get_growth_tracker() == state.growth_tracker.item()
        )
        assert torch.equal(our_weight, their_weight)


@both
def test_unscaling_twice_raises(scaler_type):
    """INVARIANTS 1. Red without the stage UNSCALED."""
    scaler = scaler_type("cpu")
    weight, optimizer = weight_and_optimizer()
    backward(scaler, weight, 1.0)
    scaler.unscale_(optimizer)
    with pytest.raises(
        RuntimeError, match=r"unscale_\(\) has already been called on this optimizer since the last"
    ):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update\(\)"):
        scaler.step(optimizer)


@both
def test_clipping_after_unscaling_does_not_depend_on_the_scale(scaler_type):
    """INVARIANTS 2. Red when unscale_ leaves the gradients as they are."""
    results = []
    for init_scale in (1.0, 2.0**10):
        scaler = scaler_type("cpu", init_scale)
        weight, optimizer = weight_and_optimizer()
        backward(scaler, weight, 4.0)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([weight], 1.0)
        scaler.step(optimizer)
        results.append(weight.detach())
    assert torch.equal(*results)


@both
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_skips_its_own_optimizer_only_and_backs_off_once(scaler_type, fused):
    """INVARIANTS 5, 6, 8. Red when optimizers share an account, and when update() reads only the last."""
    scaler = scaler_type("cpu", 1024.0)
    bad, bad_optimizer = weight_and_optimizer(torch.optim.AdamW, fused=fused)
    good, good_optimizer = weight_and_optimizer(torch.optim.AdamW, fused=fused)
    for weight, optimizer in ((bad, bad_optimizer), (good, good_optimizer)):
        iterate(scaler, weight, optimizer, 1.0)
    before_bad, before_good = snapshot(bad_optimizer), good.detach().clone()
    backward(scaler, bad, INF)
    backward(scaler, good, 1.0)
    scaler.step(bad_optimizer)
    scaler.step(good_optimizer)
    scaler.update()
    assert repr(snapshot(bad_optimizer)) == repr(before_bad)
    assert not torch.equal(good, before_good)
    assert scaler.get_scale() == 512.0


@both
@pytest.mark.parametrize("unscales_first", [False, True])
@pytest.mark.parametrize("optimizer_type", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimizers_step_as_without_a_scaler(scaler_type, optimizer_type, unscales_first):
    """A power of two is transparent. Red when grad_scale is set for gradients that are unscaled already."""
    plain, plain_optimizer = weight_and_optimizer(optimizer_type, fused=True)
    scaled, scaled_optimizer = weight_and_optimizer(optimizer_type, fused=True)
    scaler = scaler_type("cpu", 2.0**12)
    for gradient in (1.0, -0.3, 0.7):
        backward(scaler_type("cpu", enabled=False), plain, gradient)
        plain_optimizer.step()
        backward(scaler, scaled, gradient)
        if unscales_first:
            scaler.unscale_(scaled_optimizer)
        scaler.step(scaled_optimizer)
        scaler.update()
    assert torch.equal(scaled, plain)
    assert not hasattr(scaled_optimizer, "found_inf")
    assert not hasattr(scaled_optimizer, "grad_scale")


@both
def test_a_grad_scale_of_the_users_own_multiplies_the_scale(scaler_type):
    weight, optimizer = weight_and_optimizer(fused=True, lr=1.0)
    optimizer.grad_scale = torch.tensor(4.0)
    iterate(scaler_type("cpu", 2.0**12), weight, optimizer, 1.0)
    assert weight.tolist() == [0.75] * 3


class NeedsTheScaler(torch.optim.SGD):
    """The older contract of fused optimizers: `step` asks for the scaler itself."""

    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        assert grad_scaler is None
        return super().step(closure)


def test_an_optimizer_that_asks_for_the_scaler_is_unscaled_and_skipped_for_it():
    scaler = LossScaler("cpu", 1024.0)
    weight, optimizer = weight_and_optimizer(NeedsTheScaler)
    iterate(scaler, weight, optimizer, 1.0)
    iterate(scaler, weight, optimizer, NAN)
    assert weight.tolist() == [0.5] * 3
    assert scaler.get_scale() == 512.0


@both
def test_micro_batches_under_one_scale_equal_one_batch(scaler_type):
    """INVARIANTS 3, 4: the loop unscales once, after the last backward."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    scaler = scaler_type("cpu", 2.0**8)
    weight, optimizer = weight_and_optimizer(lr=1.0)
    for part in x.split(1):
        scaler.scale((part * weight).sum() / 4).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(
        weight.detach(), 1 - x.mean(0), rtol=0, atol=8 * torch.finfo(torch.float32).eps
    )


@both
def test_twice_the_scale_gives_the_same_gradients_but_for_subnormals(scaler_type):
    """INVARIANTS 11, float16 autocast: bit-equal where the backward is normal, not where it is subnormal."""

    def unscaled(init_scale, loss_factor):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters())
        scaler = scaler_type("cpu", init_scale)
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(5, 8)).float().square().mean() * loss_factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return [parameter.grad for parameter in model.parameters()]

    assert all(map(torch.equal, unscaled(2.0**12, 1.0), unscaled(2.0**13, 1.0)))
    assert not all(map(torch.equal, unscaled(1.0, 2.0**-18), unscaled(2.0, 2.0**-18)))


@both
def test_nested_outputs_are_scaled_and_keep_their_containers(scaler_type):
    scaler = scaler_type("cpu", 8.0)
    one = torch.ones(())
    nested = scaler.scale([one, (one, one), iter([one])])
    assert nested[:2] == [8 * one, (8 * one, 8 * one)]
    assert list(nested[2]) == [8 * one]
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(1.0)


@both
def test_float16_gradients_are_refused(scaler_type):
    """BUGS 9. Red when `allow_float16` is ignored."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.float16))
    scaler = scaler_type("cpu", 8.0)
    backward(scaler, weight, 1.0)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([weight]))


@both
def test_a_step_without_any_gradient_is_an_error(scaler_type):
    """INVARIANTS 35, BUGS 8. Red when `require_found_inf` passes None on."""
    scaler = scaler_type("cpu")
    _, optimizer = weight_and_optimizer()
    scaler.scale(torch.ones(()))
    with pytest.raises((AssertionError, ValueError), match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    with pytest.raises((AssertionError, ValueError), match="No inf checks were recorded prior to update"):
        scaler.update()


def test_a_fused_step_without_any_gradient_is_an_error_too():
    scaler = LossScaler("cpu")
    _, optimizer = weight_and_optimizer(fused=True)
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match=r"has a gradient; call scaler.scale\(loss\).backward\(\)"):
        scaler.step(optimizer)


@both
@pytest.mark.parametrize("method", ["unscale_", "step"])
def test_a_forgotten_scale_is_an_error(scaler_type, method):
    weight, optimizer = weight_and_optimizer()
    weight.sum().backward()
    with pytest.raises((AssertionError, ValueError), match=f"Attempted {method} but"):
        getattr(scaler_type("cpu"), method)(optimizer)


@both
def test_a_disabled_scaler_does_nothing(scaler_type):
    """INVARIANTS 13. Red when scale() multiplies by one: that is a new tensor."""
    scaler = scaler_type("cpu", enabled=False)
    weight, optimizer = weight_and_optimizer(lr=1.0)
    loss = weight.sum()
    outputs = [loss]
    assert scaler.scale(loss) is loss
    assert scaler.scale(outputs) is outputs
    scaler.scale(loss).backward()
    weight.grad[0] = INF
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [-INF, 0.0, 0.0]
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)
    scaler.load_state_dict({})


@both
def test_a_new_scale_replaces_the_old_one_and_spares_the_count(scaler_type):
    scaler = scaler_type("cpu", 8.0)
    weight, optimizer = weight_and_optimizer()
    iterate(scaler, weight, optimizer, 1.0)
    scaler.update(32.0)
    assert scaler.get_scale() == 32.0
    scaler.update(torch.tensor(64.0))
    assert scaler.get_scale() == 64.0
    assert scaler.state_dict()["_growth_tracker"] == 1


@both
def test_factors_and_interval_can_be_read_and_changed(scaler_type):
    scaler = scaler_type("cpu", 8.0)
    scaler.set_growth_factor(3.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(1)
    read = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    assert read == (3.0, 0.25, 1)
    weight, optimizer = weight_and_optimizer()
    iterate(scaler, weight, optimizer, 1.0)
    assert scaler.get_scale() == 24.0
    iterate(scaler, weight, optimizer, INF)
    assert scaler.get_scale() == 6.0


@both
def test_a_pickled_scaler_continues_and_one_in_mid_iteration_is_refused(scaler_type):
    scaler = scaler_type("cpu", 8.0, growth_interval=2)
    weight, optimizer = weight_and_optimizer()
    iterate(scaler, weight, optimizer, 1.0)
    continued = pickle.loads(pickle.dumps(scaler))
    for each in (scaler, continued, copy.deepcopy(scaler)):
        iterate(each, weight, optimizer, 1.0)
        assert each.get_scale() == 16.0
    backward(scaler, weight, 1.0)
    scaler.unscale_(optimizer)
    with pytest.raises(
        (AssertionError, ValueError), match="may only be pickled at the beginning of an iteration"
    ):
        pickle.dumps(scaler)


@both
def test_sparse_gradients_are_unscaled_and_checked(scaler_type):
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    before = embedding.weight.detach().clone()
    scaler = scaler_type("cpu", 8.0)
    scaler.scale(embedding(torch.tensor([1, 1, 3])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (before - embedding.weight.detach()).sum(1).round().tolist() == [0.0, 4.0, 0.0, 2.0]
    optimizer.zero_grad()
    scaler.scale(embedding(torch.tensor([2])).sum() * INF).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0


@both
def test_what_the_optimizer_returns_is_returned(scaler_type):
    class Answering(torch.optim.SGD):
        def step(self):
            return 42

    scaler = scaler_type("cpu")
    weight, optimizer = weight_and_optimizer(Answering)
    backward(scaler, weight, 1.0)
    assert scaler.step(optimizer) == 42


def test_state_passes_between_torchs_scaler_and_ours_in_both_directions():
    """Red when a key of torch's is missing or renamed."""
    weight, optimizer = weight_and_optimizer()
    source, target = torch.amp.GradScaler("cpu", 4096.0), LossScaler("cpu")
    iterate(source, weight, optimizer, 1.0)
    target.load_state_dict(source.state_dict())
    iterate(target, weight, optimizer, INF)
    iterate(target, weight, optimizer, 1.0)
    source.load_state_dict(target.state_dict())
    assert (source.get_scale(), source._get_growth_tracker()) == (2048.0, 1)


def test_loading_an_empty_state_is_refused():
    with pytest.raises(RuntimeError, match=r"source state dict is empty.*start without it"):
        LossScaler("cpu").load_state_dict({})


def test_a_shortened_interval_grows_at_the_next_clean_update():
    scaler = LossScaler("cpu", 8.0)
    weight, optimizer = weight_and_optimizer()
    for _ in range(4):
        iterate(scaler, weight, optimizer, 1.0)
    scaler.set_growth_interval(2)
    iterate(scaler, weight, optimizer, 1.0)
    assert scaler.get_scale() == 16.0


@every_policy
def test_persistent_nan_never_drives_the_scale_below_its_floor(policy):
    """INVARIANTS 10, BUGS 3: 500 updates from 65536. Red without the clamp of `advance_`: zero after 166."""
    scaler = LossScaler("cpu", 65536.0, policy=policy, min_scale=1.0)
    weight, optimizer = weight_and_optimizer()
    lowest = INF
    for _ in range(500):
        iterate(scaler, weight, optimizer, NAN)
        lowest = min(lowest, scaler.get_scale())
    assert lowest == (65536.0 if policy.name == "static" else 1.0)
    assert weight.tolist() == [1.0] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_a_collapsed_scale_skips_for_ever_instead_of_destroying_the_weights(fused):
    """BUGS 3, without a floor. Red when `fresh_found_inf` is always 0: zero gradients times 1/0 are NaN."""
    scaler = LossScaler("cpu", 1.0)
    weight, optimizer = weight_and_optimizer(fused=fused)
    with warnings.catch_warnings(record=True) as caught:
        for gradient in [NAN] * 160 + [1.0] * 3:
            iterate(scaler, weight, optimizer, gradient)
    assert scaler.get_scale() == 0.0
    assert weight.tolist() == [1.0] * 3
    assert fused or "min_scale=1 would have kept a floor" in str(caught[0].message)


@every_policy
def test_lean_calls_and_torchs_calls_run_the_same_trace(policy):
    """check_and_unscale_ and advance_ are unscale_ and update() without the account."""
    scaler, lean = (LossScaler("cpu", 1024.0, policy=policy) for _ in range(2))
    weight, optimizer = weight_and_optimizer()
    for gradient in (1.0, INF, 2.0, NAN, -3.0, 0.5):
        backward(lean, weight, gradient)
        found_inf = lean.check_and_unscale_([weight.grad])
        amax = weight.grad.abs().max() if lean.needs_amax else None
        lean.advance_(found_inf, amax)
        iterate(scaler, weight, optimizer, gradient)
        assert found_inf.item() == float(not math.isfinite(gradient))
        assert lean.state_dict() == scaler.state_dict()


def test_a_fused_optimizer_reports_the_unscaled_amax():
    """Red without the `* inv_scale`, as the gradients are still scaled by 1024 then."""
    scales = []
    for fused in (False, True):
        scaler = LossScaler("cpu", 1024.0, policy=LogMax())
        iterate(scaler, *weight_and_optimizer(fused=fused), 2.0)
        scales.append(scaler.get_scale())
    assert scales == [2.0**15, 2.0**15]


def test_the_largest_amax_of_several_optimizers_counts():
    scaler = LossScaler("cpu", 1024.0, policy=LogMax())
    arms = [(*weight_and_optimizer(), gradient) for gradient in (8.0, 2.0)]
    for weight, optimizer, gradient in arms:
        backward(scaler, weight, gradient)
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**13


def test_a_disabled_scaler_checks_gradients_without_changing_them():
    scaler = LossScaler("cpu", enabled=False)
    finite, bad = torch.tensor([3.0]), torch.tensor([INF])
    assert scaler.check_and_unscale_([finite]).item() == 0.0
    assert scaler.check_and_unscale_([finite, bad]).item() == 1.0
    assert finite.item() == 3.0
    scaler.advance_(torch.tensor(1.0))
    assert (scaler.scale_tensor, scaler.growth_tracker_tensor, scaler.needs_amax) == (None, None, False)


def test_bounds_of_the_scaler_narrow_those_of_the_policy():
    scaler = LossScaler("cpu", 8.0, policy=Dynamic(min_scale=4.0), min_scale=2.0, max_scale=16.0)
    assert scaler.policy == Dynamic(min_scale=4.0, max_scale=16.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_scale": 0.0}, "init_scale=0.0: must be a finite, positive float32; 65536 suits most models"),
        ({"init_scale": NAN}, "init_scale=nan: must be a finite, positive float32"),
        ({"growth_factor": 1.0}, "growth_factor=1.0: must be finite and greater than 1; use 2.0"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0: must lie between 0 and 1"),
        ({"growth_interval": 0}, "growth_interval=0: must be a whole number of at least 1"),
        ({"min_scale": -1.0}, "min_scale=-1.0: must be finite and at least 0"),
        ({"min_scale": 2.0, "max_scale": 1.0}, "max_scale=1.0: must be positive and at least min_scale=2.0"),
        ({"max_scale": 4.0}, "init_scale=65536.0: must lie within .* widen the bounds"),
        (
            {"policy": Static(), "growth_interval": 5},
            "policy=Static.*give the factors to the policy, or leave out",
        ),
    ],
)
def test_nonsense_arguments_are_refused_with_the_way_out(arguments, message):
    """BUGS 19: a policy beside torch's factors must not silently win."""
    with pytest.raises(ValueError, match=message):
        LossScaler("cpu", **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_cuda_is_refused_where_torch_would_train_unscaled():
    """BUGS 20. Red when the device is not looked at."""
    with pytest.raises(
        ValueError, match=r'use LossScaler\(device="cpu"\).*or enabled=False to train without'
    ):
        LossScaler()
    assert not LossScaler(enabled=False).is_enabled()


@pytest.mark.parametrize("as_keyword", [False, True])
def test_a_closure_is_refused_however_it_is_passed(as_keyword):
    """torch takes a positional closure and runs backward after its check. Red without the look at `args`."""
    scaler = LossScaler("cpu")
    weight, optimizer = weight_and_optimizer()
    backward(scaler, weight, 1.0)
    arguments = ((), {"closure": weight.sum}) if as_keyword else ((weight.sum,), {})
    with pytest.raises(
        RuntimeError, match=r"Closure use is not currently supported.*scaler.step\(optimizer\) alone"
    ):
        scaler.step(optimizer, *arguments[0], **arguments[1])
    scaler.step(optimizer, None)
    assert weight.tolist() == [0.5] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_the_default_traces_torch_on_a_gpu(fused):
    arms = []
    for scaler_type in (torch.amp.GradScaler, LossScaler):
        weight = nn.Parameter(torch.ones(3, device="cuda"))
        arms.append(
            (scaler_type("cuda", 1024.0, growth_interval=2), weight, torch.optim.AdamW([weight], fused=fused))
        )
    for gradient in (1.0, 2.0, INF, 1.0, NAN, 1.0, 1.0):
        for arm in arms:
            iterate(*arm, gradient)
        assert arms[0][0].get_scale() == arms[1][0].get_scale()
    assert arms[1][0].scale_tensor.is_cuda
    assert torch.equal(arms[0][1], arms[1][1])
    assert pickle.loads(pickle.dumps(arms[1][0])).get_scale() == arms[1][0].get_scale()
