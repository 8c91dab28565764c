"""Tests of ampx.data.vision, on small sets written in the formats that the real ones come in."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ampx.config.data import Cifar10Settings, Flowers102Settings, ImageFolderSettings
from ampx.data.vision import cifar10, crop_and_flip, flowers102, imagefolder

COMMON: dict[str, Any] = {
    "image_size": 32,
    "augment": False,
    "mean": (0.0, 0.0, 0.0),
    "std": (1.0, 1.0, 1.0),
    "batch_size": 4,
    "shuffle": False,
    "drop_last": False,
}
LOADED: dict[str, Any] = COMMON | {"num_workers": 0, "pin_memory": True}


def folder_settings(root: Path, **changes: Any) -> ImageFolderSettings:
    return ImageFolderSettings(kind="imagefolder", root=str(root), **{**LOADED, **changes})


def flowers_settings(root: Path, **changes: Any) -> Flowers102Settings:
    return Flowers102Settings(kind="flowers102", root=str(root), **{**LOADED, "download": False, **changes})


def cifar_settings(root: Path, **changes: Any) -> Cifar10Settings:
    return Cifar10Settings(kind="cifar10", root=str(root), **{**COMMON, "download": False, **changes})


def random_image(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for part, count in (("train", 6), ("val", 3)):
        for number, name in enumerate(("cat", "dog")):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                random_image(index + 100 * number).save(root / part / name / f"{index}.png")
    return root


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's files with ten images each, and torchvision's list of checksums made to fit them."""
    from torchvision.datasets import CIFAR10

    (tmp_path / "cifar-10-batches-py").mkdir()

    def write(name: str, content: dict[str, Any]) -> list[str]:
        file = tmp_path / "cifar-10-batches-py" / name
        file.write_bytes(pickle.dumps(content, protocol=2))
        return [name, hashlib.md5(file.read_bytes()).hexdigest()]

    def images(seed: int) -> dict[str, Any]:
        pixels = np.random.default_rng(seed).integers(0, 256, (10, 3072), dtype=np.uint8)
        return {"data": pixels, "labels": list(range(10))}

    names = {"label_names": [f"class {number}" for number in range(10)]}
    meta = {"filename": "batches.meta", "key": "label_names", "md5": write("batches.meta", names)[1]}
    monkeypatch.setattr(CIFAR10, "train_list", [write(f"data_batch_{n}", images(n)) for n in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [write("test_batch", images(9))])
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return tmp_path


@pytest.fixture
def flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Flowers-102's files with six images, and torchvision's checksums made to fit them."""
    savemat = pytest.importorskip("scipy.io").savemat
    from torchvision.datasets import Flowers102

    folder = tmp_path / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for number in range(1, 7):
        random_image(number).save(folder / "jpg" / f"image_{number:05d}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": np.array([1, 2, 3, 102, 5, 6])})
    savemat(
        folder / "setid.mat",
        {"trnid": np.array([1, 2, 3, 4]), "valid": np.array([5, 6]), "tstid": np.array([])},
    )
    checksums = {
        key: (name, hashlib.md5((folder / name).read_bytes()).hexdigest())
        for key, name in (("label", "imagelabels.mat"), ("setid", "setid.mat"))
    }
    monkeypatch.setattr(Flowers102, "_file_dict", {**Flowers102._file_dict, **checksums})
    return tmp_path


def test_imagefolder_gives_float32_images_of_the_asked_size(folder: Path) -> None:
    splits = imagefolder(folder_settings(folder), seed=0)
    images, labels = next(splits.train.iterate(0, 0))
    assert (images.shape, images.dtype, labels.dtype) == ((4, 3, 32, 32), torch.float32, torch.int64)
    assert 0 <= images.min() < images.max() <= 1
    assert torch.cat([labels for _, labels in splits.val.iterate(0, 0)]).tolist() == [0, 0, 0, 1, 1, 1]
    assert splits.spec.sizes() | {"in_features": 0} == {
        "in_features": 0,
        "in_channels": 3,
        "image_size": 32,
        "num_classes": 2,
    }


def test_imagefolder_gives_the_same_augmented_batches_with_0_and_2_workers(folder: Path) -> None:
    """Breaking it: leaving out the seeding of each batch."""
    runs = [
        list(
            imagefolder(
                folder_settings(folder, augment=True, shuffle=True, num_workers=n), seed=3
            ).train.iterate(1, 0)
        )
        for n in (0, 2)
    ]
    assert len(runs[0]) == len(runs[1]) == 3
    for (images, labels), (others, other_labels) in zip(*runs, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_augmentation_is_for_training_alone_and_differs_by_epoch(folder: Path) -> None:
    splits = imagefolder(folder_settings(folder, augment=True), seed=0)
    assert not torch.equal(next(splits.train.iterate(0, 0))[0], next(splits.train.iterate(1, 0))[0])
    assert torch.equal(next(splits.val.iterate(0, 0))[0], next(splits.val.iterate(1, 0))[0])


def test_images_are_standardised_inside_the_data_set(folder: Path) -> None:
    raw = next(imagefolder(folder_settings(folder), seed=0).val.iterate(0, 0))[0]
    changed = folder_settings(folder, mean=(0.5, 0.4, 0.3), std=(0.2, 0.1, 0.3))
    standardised = next(imagefolder(changed, seed=0).val.iterate(0, 0))[0]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (changed.mean, changed.std))
    torch.testing.assert_close(standardised, (raw - mean) / std)


def test_a_missing_image_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data\.root=.*: must hold images as .*/train/<class>/<image>\.png.*; set"
    ):
        imagefolder(folder_settings(tmp_path / "nowhere"), seed=0)


def test_an_empty_class_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"no valid file for the classes cat.*; set data\.root"):
        imagefolder(folder_settings(tmp_path), seed=0)


def test_classes_that_only_one_part_has_are_refused(tmp_path: Path) -> None:
    for part, name in (("train", "cat"), ("val", "dog")):
        (tmp_path / part / name).mkdir(parents=True)
        random_image(0).save(tmp_path / part / name / "0.png")
    with pytest.raises(ValueError, match="only one of them has cat, dog; add or remove"):
        imagefolder(folder_settings(tmp_path), seed=0)


def test_cifar10_is_read_from_its_published_format(cifar: Path) -> None:
    splits = cifar10(cifar_settings(cifar), seed=0)
    images, labels = next(splits.train.iterate(0, 0))
    with (cifar / "cifar-10-batches-py" / "data_batch_1").open("rb") as file:
        stored = torch.from_numpy(pickle.load(file)["data"]).view(10, 3, 32, 32)[:4]
    torch.testing.assert_close(images, stored.float() / 255)
    assert labels.tolist() == [0, 1, 2, 3]
    assert (len(splits.train), len(splits.val)) == (13, 3)
    assert splits.spec.sizes()["num_classes"] == 10


def test_cifar10_batches_depend_on_seed_epoch_and_index_alone(cifar: Path) -> None:
    settings = cifar_settings(cifar, augment=True, shuffle=True)
    whole = list(cifar10(settings, seed=1).train.iterate(2, 0))
    rest = list(cifar10(settings, seed=1).train.iterate(2, 5))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[5:], rest, strict=True))
    assert not torch.equal(whole[0][0], next(cifar10(settings, seed=2).train.iterate(2, 0))[0])


def test_cifar10_is_augmented_for_training_alone(cifar: Path) -> None:
    plain, augmented = (cifar10(cifar_settings(cifar, augment=augment), seed=1) for augment in (False, True))
    for part, is_equal in (("train", False), ("val", True)):
        first, second = (next(getattr(splits, part).iterate(0, 0)) for splits in (plain, augmented))
        assert torch.equal(first[0], second[0]) == is_equal
        assert torch.equal(first[1], second[1])


def test_cifar10_is_interpolated_to_another_image_size(cifar: Path) -> None:
    splits = cifar10(cifar_settings(cifar, image_size=64), seed=0)
    assert next(splits.train.iterate(0, 0))[0].shape == (4, 3, 64, 64)
    assert splits.spec.sizes()["image_size"] == 64


def test_cifar10_that_is_not_there_or_damaged_offers_the_download(cifar: Path, tmp_path: Path) -> None:
    way_out = (
        r"data\.root=.*: must hold cifar10 as published in .*cifar-10-batches-py.* or data\.download=true"
    )
    with pytest.raises(ValueError, match=way_out):
        cifar10(cifar_settings(tmp_path / "nowhere"), seed=0)
    (cifar / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=way_out):
        cifar10(cifar_settings(cifar), seed=0)


def test_flowers102_is_read_from_its_published_format(flowers: Path) -> None:
    splits = flowers102(flowers_settings(flowers), seed=0)
    images, labels = next(splits.train.iterate(0, 0))
    assert (images.shape, labels.tolist()) == ((4, 3, 32, 32), [0, 1, 2, 101])
    assert next(splits.val.iterate(0, 0))[1].tolist() == [4, 5]
    assert splits.spec.sizes()["num_classes"] == 102


def test_flowers102_that_is_not_there_offers_the_download(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold flowers102 as published in .*data\.download=true"):
        flowers102(flowers_settings(tmp_path), seed=0)


def test_cropping_shifts_over_black_and_flipping_mirrors() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    seen = {crop_and_flip(image, seed, padding=1).numpy().tobytes() for seed in range(300)}
    padded = torch.nn.functional.pad(image, [1] * 4)
    shifts = [padded[..., top : top + 3, left : left + 3] for top in range(3) for left in range(3)]
    expected = {each.numpy().tobytes() for shift in shifts for each in (shift.contiguous(), shift.flip(3))}
    assert seen == expected
