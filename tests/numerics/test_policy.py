import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.config.dtype import DtypeSettings
from ampx.numerics.policy import PrecisionPolicy

GROUP = Path(__file__).parents[2] / "conf" / "dtype"


def policy(name: str, **changes: Any) -> PrecisionPolicy:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return PrecisionPolicy.from_settings(DtypeSettings.model_validate({**values, **changes}), "cpu")


@dataclass
class Phase:
    """Classifies random rows, and notes what the loss saw."""

    model: nn.Module
    inputs: Tensor
    scale: float = 1.0
    seen_dtype: torch.dtype | None = None
    is_loss_in_autocast: bool | None = None

    @property
    def forward(self) -> Callable[[], Tensor]:
        return lambda: self.model(self.inputs)

    @property
    def loss(self) -> Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]:
        return self._loss

    def _loss(self, logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen_dtype = logits.dtype
        self.is_loss_in_autocast = torch.is_autocast_enabled("cpu")
        targets = torch.arange(len(logits)) % logits.shape[1]
        return F.cross_entropy(logits * self.scale, targets), {}


def phase(scale: float = 1.0) -> Phase:
    torch.manual_seed(0)
    return Phase(nn.Linear(16, 10), torch.randn(32, 16), scale)


def test_the_options_differ_in_what_they_derive() -> None:
    derived = {
        name: (policy(name).is_mixed, policy(name).is_pure)
        for name in ("fp32", "tf32", "bf16", "fp16", "bf16_pure", "fp16_pure")
    }
    assert derived == {
        "fp32": (False, False),
        "tf32": (False, False),
        "bf16": (True, False),
        "fp16": (True, False),
        "bf16_pure": (False, True),
        "fp16_pure": (False, True),
    }


@pytest.mark.parametrize(
    ("scope", "dtype", "is_inside"),
    [
        ("forward_loss", torch.bfloat16, True),
        ("forward_float", torch.float32, False),
        ("forward_raw", torch.bfloat16, False),
    ],
)
def test_scope_says_where_autocast_ends(scope: str, dtype: torch.dtype, is_inside: bool) -> None:
    """INVARIANTS 16; red when `run` takes the loss outside, or inside, for every scope."""
    example = phase()
    policy("bf16", scope=scope).run(example)
    assert (example.seen_dtype, example.is_loss_in_autocast) == (dtype, is_inside)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_loss_inside_equals_the_float_loss_outside_bit_for_bit(dtype: str) -> None:
    """INVARIANTS 17; red when forward_float forgets its cast."""
    inside, _ = policy(dtype).run(phase())
    outside, _ = policy(dtype, scope="forward_float").run(phase())
    assert torch.equal(inside, outside)


def test_raw_half_outputs_outside_overflow_where_the_float_loss_does_not() -> None:
    finite, _ = policy("fp16", scope="forward_float").run(phase(scale=2.0**17))
    raw, _ = policy("fp16", scope="forward_raw").run(phase(scale=2.0**17))
    assert torch.isfinite(finite)
    assert not torch.isfinite(raw)


def test_scope_step_covers_backward_and_more_than_one_forward() -> None:
    chosen = policy("bf16", scope="step")
    example = phase()
    with chosen.step_region():
        for _ in range(2):
            loss, _ = chosen.run(example)
            with chosen.backward_region():
                assert torch.is_autocast_enabled("cpu")
                loss.backward()
    assert example.is_loss_in_autocast
    assert not torch.is_autocast_enabled("cpu")


def test_other_scopes_open_nothing_around_the_step() -> None:
    with policy("bf16").step_region():
        assert not torch.is_autocast_enabled("cpu")


def test_backward_is_outside_even_where_a_task_left_autocast_open() -> None:
    """INVARIANTS 16; red when `backward_region` is always a null context."""
    with torch.autocast("cpu", torch.bfloat16), policy("bf16").backward_region():
        assert not torch.is_autocast_enabled("cpu")


def test_a_forward_without_gradients_does_not_cost_the_next_one_its_gradients() -> None:
    """BUGS 11; red when all forwards share one region whose weight cache outlives a no_grad forward."""
    example = phase()
    chosen = policy("bf16")
    with torch.no_grad():
        chosen.run(example)
    loss, _ = chosen.run(example)
    loss.backward()
    assert all(p.grad is not None for p in example.model.parameters())


def test_a_weight_changed_between_forwards_is_seen_by_the_next() -> None:
    """The weight cache ends with its region; red when one region spans both forwards."""
    example = phase()
    chosen = policy("bf16")
    before, _ = chosen.run(example)
    with torch.no_grad():
        for parameter in example.model.parameters():
            parameter.mul_(3)
    after, _ = chosen.run(example)
    assert not torch.equal(before, after)


def test_weights_are_cast_anew_each_time_without_the_cache() -> None:
    model, x = nn.Linear(4, 4), torch.ones(1, 4)
    for cached in (True, False):
        with policy("bf16", cache_weights=cached).evaluation_region():
            before = model(x)
            with torch.no_grad():
                model.weight.add_(1)
            assert torch.equal(before, model(x)) is cached


def test_regions_of_one_policy_nest_and_leave_autocast_as_it_was() -> None:
    """Red when the policy enters one torch.autocast object twice: it remembers only the last state."""
    chosen = policy("bf16")
    with chosen.evaluation_region():
        chosen.run(phase())
        with chosen.evaluation_region():
            pass
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_regions_of_two_threads_do_not_meet() -> None:
    chosen, seen = policy("bf16"), []
    with chosen.evaluation_region():
        thread = threading.Thread(target=lambda: seen.append(torch.is_autocast_enabled("cpu")))
        thread.start()
        thread.join()
    assert seen == [False]


def test_evaluation_runs_in_the_declared_precision_whatever_the_scope() -> None:
    """INVARIANTS 22."""
    for scope in ("forward_loss", "forward_float", "forward_raw", "step"):
        with policy("bf16", scope=scope).evaluation_region():
            assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16


def test_a_pure_policy_casts_batches_and_outputs_and_opens_no_autocast() -> None:
    """INVARIANTS 18: without autocast the inputs are what must be low."""
    chosen = policy("bf16_pure")
    rows, labels = chosen.cast_batch((torch.ones(2, 4), torch.tensor([0, 1])))
    assert (rows.dtype, labels.dtype) == (torch.bfloat16, torch.int64)
    example = Phase(nn.Linear(4, 2).bfloat16(), rows)
    loss, _ = chosen.run(example)
    assert (example.seen_dtype, example.is_loss_in_autocast) == (torch.float32, False)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_autocast_and_float32_take_the_batch_itself(name: str) -> None:
    batch = (torch.ones(2), torch.ones(2))
    assert policy(name).cast_batch(batch) is batch


def test_float32_opens_no_autocast_at_all() -> None:
    chosen = policy("fp32")
    assert isinstance(chosen.evaluation_region(), nullcontext)
    assert isinstance(chosen.step_region(), nullcontext)
    example = phase()
    chosen.run(example)
    assert (example.seen_dtype, example.is_loss_in_autocast) == (torch.float32, False)


def test_the_two_spans_of_a_forward_are_named() -> None:
    names: list[str] = []

    def span(name: str) -> nullcontext[None]:
        names.append(name)
        return nullcontext()

    for scope in ("forward_loss", "forward_float"):
        policy("bf16", scope=scope).run(phase(), span)
    assert names == ["forward", "loss"] * 2
