"""Tests of ampx.models.lstm."""

import warnings

import torch

from ampx.models.lstm import LSTM


def test_a_token_changes_no_prediction_before_it() -> None:
    torch.manual_seed(0)
    model = LSTM(width=8, depth=2, dropout=0.0, vocab_size=11)
    first = torch.randint(11, (1, 6))
    second = first.clone()
    second[0, 3] = (second[0, 3] + 1) % 11
    difference = (model(first) - model(second)).abs().amax(dim=(0, 2))
    assert (difference[:3] == 0).all()
    assert (difference[3:] > 0).all()


def test_dropout_of_a_single_layer_raises_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LSTM(width=8, depth=1, dropout=0.5, vocab_size=11)
