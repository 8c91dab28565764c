"""The embedded default: 1,797 handwritten digits of 8×8 pixels (`digits.LICENSE.txt` says whose they are)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ampx.config.data import DigitsSettings
from ampx.data.arrays import ArraySource, rows_of
from ampx.data.order import training_order, validation_order
from ampx.data.splits import Splits
from ampx.spec import DataSpec


def digits(settings: DigitsSettings, seed: int) -> Splits:
    """Images float32 (B, 1, 8, 8) in [0, 1], labels int64 (B); every fifth image of each class validates."""
    images, labels = _load()
    is_val = _is_every_fifth_of_its_class(labels)
    train, val = (images[~is_val], labels[~is_val]), (images[is_val], labels[is_val])
    return Splits(
        train=ArraySource(training_order(settings, len(train[1]), seed), rows_of(*train)),
        val=ArraySource(validation_order(settings, len(val[1])), rows_of(*val)),
        spec=DataSpec(input_shape=(1, 8, 8), num_classes=10),
    )


def _load() -> tuple[Tensor, Tensor]:
    with np.load(Path(__file__).with_name("digits.npz")) as archive:
        images, labels = archive["images"], archive["labels"]
    pixels = torch.from_numpy(images).unsqueeze(1).float()  # stored as 8-bit integers from 0 to 16
    return pixels / 16, torch.from_numpy(labels).long()  # int64 is what cross_entropy takes


def _is_every_fifth_of_its_class(labels: Tensor) -> Tensor:
    chosen = torch.zeros_like(labels, dtype=torch.bool)
    for digit in range(10):
        chosen[(labels == digit).nonzero().flatten()[4::5]] = True
    return chosen
