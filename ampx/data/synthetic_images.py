"""Images made from their index: each class has a smooth pattern, each sample its own noise over it.

Only the patterns and one canvas of noise are stored, so a set of any size costs the same memory.
"""

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from ampx.config.data import SyntheticImagesSettings
from ampx.data.arrays import ArraySource
from ampx.data.order import training_order, validation_order
from ampx.data.splits import Splits
from ampx.spec import DataSpec

_NOISE_SHIFTS = 64  # a sample's noise is a window on the canvas, at one of 64 × 64 places


def synthetic_images(settings: SyntheticImagesSettings, seed: int) -> Splits:
    """Images float32 in [0, 1] and labels int64, the same for every seed: that decides the order alone."""
    shape = (settings.channels, settings.image_size, settings.image_size)
    images = _PatternImages(shape, settings.num_classes)
    return Splits(
        train=ArraySource(training_order(settings, settings.num_samples, seed), images.fetch),
        val=ArraySource(
            validation_order(settings, settings.num_val_samples),
            lambda indices: images.fetch(indices + settings.num_samples),
        ),
        spec=DataSpec(input_shape=shape, num_classes=settings.num_classes),
    )


@final
class _PatternImages:
    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        channels, height, width = shape
        generator = torch.Generator().manual_seed(0)
        coarse = torch.rand(num_classes, channels, 4, 4, generator=generator)
        self._patterns = F.interpolate(coarse, size=(height, width), mode="bilinear")
        canvas = torch.rand(channels, height + _NOISE_SHIFTS, width + _NOISE_SHIFTS, generator=generator)
        windows = canvas.unfold(1, height, 1).unfold(2, width, 1)
        self._noise = windows.permute(1, 2, 0, 3, 4)  # a view: row and column of the place, then one image

    def fetch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        labels = indices % len(self._patterns)
        place = (indices * 2654435761) % _NOISE_SHIFTS**2  # an odd factor reaches every place
        noise = self._noise[place // _NOISE_SHIFTS, place % _NOISE_SHIFTS]
        return (self._patterns[labels] + noise) / 2, labels
