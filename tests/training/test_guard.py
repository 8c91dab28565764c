"""Buffers go back to where they were before a skipped attempt, and only then."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ampx.training.guard import BufferGuard

Undo = Callable[[BufferGuard, bool], None]


def on_host(guard: BufferGuard, is_skipped: bool) -> None:
    if is_skipped:
        guard.restore()


def on_device(guard: BufferGuard, is_skipped: bool) -> None:
    guard.restore_where(torch.tensor(float(is_skipped)))


HOW = pytest.mark.parametrize("undo", [on_host, on_device])


class Counting(nn.Module):
    """Buffers of its own: one written in place, one replaced, one left alone, one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("constant", torch.ones(2))
        self.register_buffer("absent", None)

    def forward(self) -> None:
        self.written += 1
        self.replaced = self.replaced + 1

    def values(self) -> list[float]:
        return [self.written[0].item(), self.replaced[0].item(), self.constant[0].item()]


@HOW
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
def test_running_statistics_survive_a_skip_and_follow_an_applied_step(undo: Undo, norm: nn.Module) -> None:
    """BUGS 12. Red when only buffers with a new version count as touched: BatchNorm writes without one."""
    x = torch.randn(4, 3, 5)
    guard = BufferGuard(norm.train())
    before = norm.running_mean.clone()
    for is_skipped in (True, True, False, True):
        guard.snapshot()
        kept = norm.running_mean.clone()
        norm(x * torch.nan if is_skipped else x)
        undo(guard, is_skipped)
        assert torch.equal(norm.running_mean, kept) == is_skipped
    assert torch.isfinite(norm.running_var).all()
    assert not torch.equal(norm.running_mean, before)


@HOW
def test_buffers_of_any_module_are_kept_whether_written_or_replaced(undo: Undo) -> None:
    """Red when the guard holds the tensors of the first step: a replaced buffer is then another object."""
    model = Counting()
    guard = BufferGuard(model)
    expected = 0.0
    for is_skipped in (False, True, True, False, True):
        guard.snapshot()
        model()
        undo(guard, is_skipped)
        expected += not is_skipped
        assert model.values() == [expected, expected, 1.0]


@HOW
def test_a_buffer_made_in_inference_mode_or_shared_is_no_obstacle(undo: Undo) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model.append(model[0])
    guard = BufferGuard(model.train())
    with torch.inference_mode():
        model.eval()(torch.ones(3, 2))
    model.train()
    guard.snapshot()
    before: list[Tensor] = [buffer.clone() for buffer in model.buffers()]
    model(torch.randn(3, 2))
    undo(guard, True)
    assert all(map(torch.equal, before, model.buffers()))
