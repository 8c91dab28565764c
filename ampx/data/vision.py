"""Real images through torchvision, from a folder on this machine; nothing is downloaded unasked.

torchvision is imported when a set is built and not before: it takes more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ampx.config.data import (
    Cifar10Settings,
    Flowers102Settings,
    ImageFolderSettings,
    ImageSettings,
    LoadedImageSettings,
)
from ampx.data.arrays import ArraySource, Batch, Fetch, rows_of
from ampx.data.loader import LoaderSource, SampleSet
from ampx.data.order import training_order, validation_order
from ampx.data.splits import Splits
from ampx.spec import DataSpec

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10, ImageFolder

T = TypeVar("T")
Transform = Callable[[Any], Tensor]


def cifar10(settings: Cifar10Settings, seed: int) -> Splits:
    """60,000 images of 32×32 pixels, held in memory as 8-bit integers and finished a batch at a time."""
    from torchvision.datasets import CIFAR10

    train = _open(
        settings, "cifar-10-batches-py", lambda: CIFAR10(settings.root, True, download=settings.download)
    )
    val = _open(settings, "cifar-10-batches-py", lambda: CIFAR10(settings.root, False))
    plain = partial(_finished, settings=settings)
    return Splits(
        train=ArraySource(
            training_order(settings, len(train), seed),
            _pixels_of(train),
            partial(plain, padding=4) if settings.augment else plain,
        ),
        val=ArraySource(validation_order(settings, len(val)), _pixels_of(val), plain),
        spec=_image_spec(settings, 10),
    )


def flowers102(settings: Flowers102Settings, seed: int) -> Splits:
    """Oxford's 102 kinds of flowers: 1,020 photographs to train, 1,020 to validate."""
    from torchvision.datasets import Flowers102

    augmented, plain = _transforms(settings)
    train = _open(
        settings,
        "flowers-102",
        lambda: Flowers102(settings.root, "train", augmented, download=settings.download),
    )
    val = _open(settings, "flowers-102", lambda: Flowers102(settings.root, "val", plain))
    return _loaded(settings, seed, train, val, num_classes=102)


def imagefolder(settings: ImageFolderSettings, seed: int) -> Splits:
    """A user's own images: `<root>/train/<class>/*` to train, `<root>/val/<class>/*` to validate."""
    augmented, plain = _transforms(settings)
    train, val = _image_folder(settings, "train", augmented), _image_folder(settings, "val", plain)
    if train.classes != val.classes:
        only_one_has = ", ".join(sorted(set(train.classes) ^ set(val.classes)))
        raise ValueError(
            f"data.root={settings.root}: train and val must have the same class folders, "
            f"but only one of them has {only_one_has}; add or remove these"
        )
    return _loaded(settings, seed, train, val, num_classes=len(train.classes))


def crop_and_flip(images: Tensor, seed: int, *, padding: int) -> Tensor:
    """Each image (B, C, N, N) shifted by up to `padding` pixels over black, and mirrored half of the time."""
    generator = torch.Generator().manual_seed(seed)
    count, side = images.shape[0], images.shape[-1]
    windows = F.pad(images, [padding] * 4).unfold(2, side, 1).unfold(3, side, 1)
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    cropped = windows[torch.arange(count), :, top, left]
    is_mirrored = torch.rand(count, 1, 1, 1, generator=generator) < 0.5
    return torch.where(is_mirrored, cropped.flip(3), cropped)


def _open(settings: Cifar10Settings | Flowers102Settings, folder: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except RuntimeError as error:  # how torchvision says that files are missing or not as published
        raise ValueError(
            f"data.root={settings.root}: must hold {settings.kind} as published in {settings.root}/{folder}, "
            "but files are missing or their checksums differ; set data.root to the folder above, "
            "or data.download=true"
        ) from error
    except OSError as error:
        raise ValueError(
            f"data.root={settings.root}: {settings.kind} could not be read or downloaded ({error}); "
            f"put the files into {settings.root}/{folder} by hand, or set another data.root"
        ) from error
    except ModuleNotFoundError as error:
        raise ValueError(
            f"data={settings.kind}: its labels need the package {error.name}; pip install {error.name}"
        ) from error


def _image_folder(settings: ImageFolderSettings, part: str, transform: Transform) -> ImageFolder:
    from torchvision.datasets import ImageFolder

    folder = Path(settings.root).expanduser() / part
    try:
        return ImageFolder(folder, transform)
    except OSError as error:  # torchvision raises FileNotFoundError for empty classes too
        raise ValueError(
            f"data.root={settings.root}: must hold images as {settings.root}/{part}/<class>/<image>.png "
            f"(or .jpg …), in train and in val, but {error}; set data.root to the folder above train and val"
        ) from error


def _loaded(
    settings: LoadedImageSettings, seed: int, train: SampleSet, val: SampleSet, *, num_classes: int
) -> Splits:
    load = partial(LoaderSource, num_workers=settings.num_workers, pin_memory=settings.pin_memory)
    return Splits(
        train=load(train, training_order(settings, len(train), seed)),
        val=load(val, validation_order(settings, len(val))),
        spec=_image_spec(settings, num_classes),
    )


def _image_spec(settings: ImageSettings, num_classes: int) -> DataSpec:
    return DataSpec(input_shape=(3, settings.image_size, settings.image_size), num_classes=num_classes)


def _transforms(settings: ImageSettings) -> tuple[Transform, Transform]:
    """For training and for validation; both end in float32 (3, image_size, image_size)."""
    from torchvision import transforms

    size = settings.image_size
    finish = [transforms.ToTensor(), transforms.Normalize(settings.mean, settings.std)]
    centre = [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]  # as for ImageNet
    random = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    plain = transforms.Compose([*centre, *finish])
    return transforms.Compose([*random, *finish]) if settings.augment else plain, plain


def _pixels_of(dataset: CIFAR10) -> Fetch:
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    return rows_of(images, torch.tensor(dataset.targets))


def _finished(batch: Batch, seed: int, *, settings: ImageSettings, padding: int = 0) -> Batch:
    images, labels = batch
    if padding:
        images = crop_and_flip(images, seed, padding=padding)
    pixels = images.float() / 255  # stored as 8-bit integers
    if settings.image_size != pixels.shape[-1]:
        pixels = F.interpolate(pixels, (settings.image_size,) * 2, mode="bilinear", antialias=True)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (settings.mean, settings.std))
    return (pixels - mean) / std, labels
