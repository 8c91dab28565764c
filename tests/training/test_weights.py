"""Weights leave in one safe file and come back whole, or are refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ampx.training.weights import export_weights, load_model


def test_the_averaged_weights_are_exported_where_there_are_any(tmp_path: Path) -> None:
    checkpoint = {
        "model": {"weight": torch.ones(2, 2), "running_mean": torch.zeros(2)},
        "ema": {"averages": {"weight": torch.full((2, 2), 3.0)}},
        "progress": {"step": 7},
    }
    export_weights(checkpoint, tmp_path / "model.safetensors")
    exported = load_file(tmp_path / "model.safetensors")
    assert torch.equal(exported["weight"], torch.full((2, 2), 3.0))
    assert torch.equal(exported["running_mean"], torch.zeros(2))


def test_tied_weights_are_exported_under_both_names(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    export_weights(
        {"model": {"a": shared, "b": shared}, "ema": {}, "progress": {"step": 1}},
        tmp_path / "tied.safetensors",
    )
    assert set(load_file(tmp_path / "tied.safetensors")) == {"a", "b"}


def test_an_unwritable_place_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        export_weights(
            {"model": {"a": torch.ones(1)}, "ema": {}, "progress": {"step": 1}},
            tmp_path / "no" / "model.safetensors",
        )


def test_weights_that_do_not_fit_are_named() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(ValueError, match=r"weight is \(1, 1\), the model wants \(3, 2\)"):
        load_model(model, {"weight": torch.ones(1, 1), "bias": torch.ones(3)}, "checkpoint=x")
    with pytest.raises(ValueError, match="bias is missing; extra is not in the model"):
        load_model(model, {"weight": torch.ones(3, 2), "extra": torch.ones(3)}, "checkpoint=x")
