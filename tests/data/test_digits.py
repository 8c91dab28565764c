"""Tests of ampx.data.digits."""

import torch

from ampx.config.data import DigitsSettings
from ampx.data.digits import digits

SETTINGS = DigitsSettings(kind="digits", batch_size=64, shuffle=True, drop_last=False)


def test_digits_are_float32_images_in_0_to_1_with_int64_labels() -> None:
    splits = digits(SETTINGS, seed=0)
    images, labels = next(splits.train.iterate(0, 0))
    assert (images.shape, images.dtype) == ((64, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((64,), torch.int64)
    everything = torch.cat([images for images, _ in splits.train.iterate(0, 0)])
    assert (everything.min(), everything.max()) == (0, 1)
    assert splits.spec.sizes() == {"in_features": 64, "in_channels": 1, "image_size": 8, "num_classes": 10}


def test_a_fifth_of_each_class_validates_and_no_image_is_in_both_parts() -> None:
    splits = digits(SETTINGS, seed=0)
    train = [torch.cat(parts) for parts in zip(*splits.train.iterate(0, 0), strict=True)]
    val = [torch.cat(parts) for parts in zip(*splits.val.iterate(0, 0), strict=True)]
    assert len(train[1]) + len(val[1]) == 1797
    total = (train[1].bincount() + val[1].bincount()).tolist()
    assert val[1].bincount().tolist() == [count // 5 for count in total]
    keys = {image.numpy().tobytes() for image in train[0]}
    assert not any(image.numpy().tobytes() in keys for image in val[0])


def test_the_split_does_not_depend_on_the_seed() -> None:
    first, second = (digits(SETTINGS, seed=seed).val.iterate(0, 0) for seed in (0, 1))
    assert all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True)
    )
