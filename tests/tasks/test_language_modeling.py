"""Tests of ampx.tasks.language_modeling."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.tasks.language_modeling import LanguageModeling


class Table(nn.Module):
    """A bigram model: the logits of a token's successor are its row."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.rows = nn.Parameter(torch.randn(5, 5, generator=generator).to(dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.rows[tokens]


def test_a_step_predicts_each_token_from_those_before_it() -> None:
    """Breaking it: targets that are not shifted, which a copy of the input would satisfy."""
    model, tokens = Table(), torch.randint(5, (3, 6))
    (phase,) = LanguageModeling().phases(model, tokens)
    loss, _ = phase.loss(phase.forward())
    pairs = [(row[t], row[t + 1]) for row in tokens for t in range(5)]
    expected = sum(F.cross_entropy(model.rows[before], after) for before, after in pairs) / len(pairs)
    torch.testing.assert_close(loss, expected)


def test_evaluation_averages_over_tokens_and_not_over_batches() -> None:
    """Breaking it: the mean of batch means."""
    model, tokens = Table(), torch.randint(5, (7, 6))
    whole = LanguageModeling().evaluate(model, [tokens])
    parts = LanguageModeling().evaluate(model, [tokens[:6], tokens[6:]])
    assert whole["loss"] == pytest.approx(parts["loss"], rel=1e-6)
    assert whole["perplexity"] == pytest.approx(math.exp(whole["loss"]))


def test_sums_of_float16_logits_do_not_overflow() -> None:
    """INVARIANTS 28. Breaking it: summing the loss in float16, which ends at 65504."""
    metrics = LanguageModeling().evaluate(Table(torch.float16), [torch.zeros(100, 900, dtype=torch.int64)])
    assert math.isfinite(metrics["loss"])


def test_a_hopeless_loss_has_infinite_perplexity() -> None:
    model = Table()
    with torch.no_grad():
        model.rows.zero_()[0, 1] = 10_000
    metrics = LanguageModeling().evaluate(model, [torch.zeros(1, 3, dtype=torch.int64)])
    assert metrics == {"loss": 10_000.0, "perplexity": math.inf}


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64), (torch.zeros(2), 1)])
def test_batches_of_another_kind_are_refused(batch: Any) -> None:
    with pytest.raises(
        ValueError, match=r"task=language_modeling: takes batches int64 \(B, T\).*choose data=text"
    ):
        list(LanguageModeling().phases(Table(), batch))


def test_an_empty_validation_set_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no validation batch to evaluate; give the validation set"):
        LanguageModeling().evaluate(Table(), [])
