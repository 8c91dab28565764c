"""Tests of ampx.models.gpt."""

import torch

from ampx.models.gpt import GPT


def gpt(*, tie_weights: bool = True, dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(width=16, depth=2, heads=4, dropout=dropout, tie_weights=tie_weights, vocab_size=11, context=8)


def test_a_token_changes_no_prediction_before_it() -> None:
    """Breaking it: attention without is_causal."""
    model = gpt()
    first = torch.randint(11, (1, 8))
    second = first.clone()
    second[0, 5] = (second[0, 5] + 1) % 11
    difference = (model(first) - model(second)).abs().amax(dim=(0, 2))
    assert (difference[:5] == 0).all()
    assert (difference[5:] > 0).all()


def test_tied_weights_are_one_parameter_and_one_key() -> None:
    tied, untied = gpt(tie_weights=True), gpt(tie_weights=False)
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"head.weight"}
    tied(torch.randint(11, (2, 8))).sum().backward()
    assert tied.token_embedding.weight.grad is not None


def test_untrained_predictions_are_near_uniform() -> None:
    logits = gpt()(torch.randint(11, (4, 8)))
    assert (logits.softmax(dim=-1) - 1 / 11).abs().max() < 0.1


def test_sequences_may_be_shorter_than_the_context() -> None:
    assert gpt()(torch.randint(11, (2, 3))).shape == (2, 3, 11)


def test_dropout_acts_in_training_alone() -> None:
    model, tokens = gpt(dropout=0.5), torch.randint(11, (2, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
