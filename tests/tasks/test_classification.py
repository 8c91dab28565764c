"""Tests of ampx.tasks.classification."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.tasks.classification import Classification


class Fixed(nn.Module):
    """Gives back what it is given, so that a batch says its own logits."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def classification(label_smoothing: float = 0.0, top_k: int = 5) -> Classification:
    return Classification(label_smoothing=label_smoothing, top_k=top_k)


def batches(count: int, classes: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(7, classes, generator=generator), torch.randint(classes, (7,), generator=generator))
        for _ in range(count)
    ]


def test_a_step_has_one_phase_with_smoothed_cross_entropy_and_accuracy() -> None:
    logits, labels = batches(1)[0]
    (phase,) = classification(label_smoothing=0.1).phases(Fixed(), (logits, labels))
    loss, metrics = phase.loss(phase.forward())
    assert phase.optimizer == "main"
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=0.1))
    assert metrics["accuracy"] == (logits.argmax(1) == labels).float().mean()
    assert (metrics["accuracy"].ndim, metrics["accuracy"].dtype) == (0, torch.float32)


def test_metrics_hold_no_graph() -> None:
    logits, labels = batches(1)[0]
    (phase,) = classification().phases(nn.Linear(10, 10), (logits, labels))
    loss, metrics = phase.loss(phase.forward())
    assert loss.requires_grad
    assert not metrics["accuracy"].requires_grad


def test_evaluation_averages_over_samples_and_not_over_batches() -> None:
    """Breaking it: the mean of batch means, which gives a short batch too much weight."""
    full, rest = batches(1)[0], (torch.eye(10)[:2] * 20, torch.tensor([0, 1]))
    metrics = classification().evaluate(Fixed(), [full, rest])
    logits, labels = torch.cat([full[0], rest[0]]), torch.cat([full[1], rest[1]])
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    in_top = (logits.topk(5).indices == labels[:, None]).any(1)
    assert metrics["accuracy_top5"] == pytest.approx(in_top.double().mean().item())


def test_evaluation_has_no_label_smoothing_so_that_trials_compare() -> None:
    plain, smoothed = (classification(s).evaluate(Fixed(), batches(2)) for s in (0.0, 0.2))
    assert plain == smoothed


def test_top_k_is_capped_by_the_classes_and_1_leaves_it_out() -> None:
    assert classification(top_k=5).evaluate(Fixed(), batches(1, classes=3))["accuracy_top3"] == 1.0
    assert set(classification(top_k=1).evaluate(Fixed(), batches(1))) == {"loss", "accuracy"}
    assert set(classification(top_k=5).evaluate(Fixed(), batches(1, classes=1))) == {"loss", "accuracy"}


def test_sums_of_float16_logits_do_not_overflow() -> None:
    """INVARIANTS 28. Breaking it: summing the loss in float16, which ends at 65504."""
    labels = torch.zeros(3000, dtype=torch.int64)
    logits = torch.tensor([[-30.0, 30.0]], dtype=torch.float16).expand(3000, 2)
    metrics = classification(top_k=1).evaluate(Fixed(), [(logits, labels)])
    assert metrics["loss"] == pytest.approx(60.0)


def test_an_empty_validation_set_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no validation batch to evaluate; give the validation set"):
        classification().evaluate(Fixed(), [])


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), (torch.zeros(2),), {"x": 1}])
def test_batches_of_another_kind_are_refused(batch: Any) -> None:
    with pytest.raises(
        ValueError, match=r"task=classification: takes batches \(x, labels\), .*language_modeling"
    ):
        list(classification().phases(Fixed(), batch))


def test_outputs_that_are_no_logits_are_refused() -> None:
    (phase,) = classification().phases(Fixed(), batches(1)[0])
    with pytest.raises(ValueError, match=r"takes logits \(B, classes\), but the model gave tuple; wrap"):
        phase.loss((torch.zeros(7, 10), torch.zeros(7, 10)))
    with pytest.raises(ValueError, match=r"but the model gave \(7, 5, 10\); wrap"):
        phase.loss(torch.zeros(7, 5, 10))
