"""Tests of ampx.data.synthetic_images."""

from typing import Any

import torch

from ampx.config.data import SyntheticImagesSettings
from ampx.data.synthetic_images import synthetic_images


def settings(**changes: Any) -> SyntheticImagesSettings:
    defaults: dict[str, Any] = {
        "image_size": 16,
        "channels": 3,
        "num_classes": 4,
        "num_samples": 256,
        "num_val_samples": 64,
        "batch_size": 32,
        "shuffle": True,
        "drop_last": False,
    }
    return SyntheticImagesSettings(kind="synthetic_images", **{**defaults, **changes})


def test_images_have_the_declared_shape_and_range() -> None:
    splits = synthetic_images(settings(), seed=0)
    images, labels = next(splits.train.iterate(0, 0))
    assert (images.shape, images.dtype, labels.dtype) == ((32, 3, 16, 16), torch.float32, torch.int64)
    assert 0 <= images.min() < images.max() <= 1
    assert splits.spec.sizes() == {"in_features": 768, "in_channels": 3, "image_size": 16, "num_classes": 4}


def test_a_sample_depends_on_its_index_alone() -> None:
    """Breaking it: noise drawn per batch, which a resumed or reordered run would draw differently."""
    ordered = synthetic_images(settings(shuffle=False), seed=0)
    regrouped = synthetic_images(settings(shuffle=False, batch_size=7), seed=5)
    first, second = (
        torch.cat([images for images, _ in splits.train.iterate(0, 0)]) for splits in (ordered, regrouped)
    )
    assert torch.equal(first, second)


def test_samples_differ_within_a_class_and_between_the_parts() -> None:
    splits = synthetic_images(settings(), seed=0)
    images = [
        image for part in (splits.train, splits.val) for batch in part.iterate(0, 0) for image in batch[0]
    ]
    assert len({image.numpy().tobytes() for image in images}) == 256 + 64


def test_classes_can_be_told_apart_by_their_mean_image() -> None:
    splits = synthetic_images(settings(), seed=0)
    train = [torch.cat(parts) for parts in zip(*splits.train.iterate(0, 0), strict=True)]
    val = [torch.cat(parts) for parts in zip(*splits.val.iterate(0, 0), strict=True)]
    means = torch.stack([train[0][train[1] == label].mean(dim=0) for label in range(4)])
    nearest = torch.cdist(val[0].flatten(1), means.flatten(1)).argmin(dim=1)
    assert (nearest == val[1]).float().mean() > 0.95


def test_a_set_of_a_billion_images_costs_no_memory_up_front() -> None:
    splits = synthetic_images(settings(num_samples=10**9, shuffle=False, batch_size=2), seed=0)
    assert len(splits.train) == 5 * 10**8
    assert len(next(splits.train.iterate(0, 4 * 10**8))) == 2
