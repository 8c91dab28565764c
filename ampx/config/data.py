"""The `data` group: where batches come from. `data.batch_size` is per rank and micro-batch."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ampx.config.fields import (
    UNHASHED,
    AbsolutePath,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    TargetSettings,
)

PixelMean = tuple[float, float, float]
PixelStd = tuple[PositiveFloat, PositiveFloat, PositiveFloat]
ValFraction = Annotated[PositiveFloat, Field(lt=1)]


class BatchSettings(Settings):
    """How training samples fall into batches; validation takes every sample, in order."""

    batch_size: PositiveInt
    shuffle: bool
    drop_last: bool


class ImageSettings(BatchSettings):
    """What is done to the images of a folder on this machine."""

    root: AbsolutePath
    image_size: PositiveInt
    augment: bool
    mean: PixelMean
    std: PixelStd


class LoadedImageSettings(ImageSettings):
    """Images read from disk one by one, by DataLoader's workers."""

    num_workers: Annotated[NonNegativeInt, UNHASHED]
    pin_memory: Annotated[bool, UNHASHED]


class DigitsSettings(BatchSettings):
    implementation: ClassVar[str] = "ampx.data.digits.digits"
    kind: Literal["digits"]


class SyntheticImagesSettings(BatchSettings):
    implementation: ClassVar[str] = "ampx.data.synthetic_images.synthetic_images"
    kind: Literal["synthetic_images"]
    image_size: PositiveInt
    channels: PositiveInt
    num_classes: PositiveInt
    num_samples: PositiveInt
    num_val_samples: PositiveInt


class Cifar10Settings(ImageSettings):
    implementation: ClassVar[str] = "ampx.data.vision.cifar10"
    kind: Literal["cifar10"]
    download: Annotated[bool, UNHASHED]


class Flowers102Settings(LoadedImageSettings):
    implementation: ClassVar[str] = "ampx.data.vision.flowers102"
    kind: Literal["flowers102"]
    download: Annotated[bool, UNHASHED]


class ImageFolderSettings(LoadedImageSettings):
    implementation: ClassVar[str] = "ampx.data.vision.imagefolder"
    kind: Literal["imagefolder"]


class TextSettings(BatchSettings):
    implementation: ClassVar[str] = "ampx.data.text.text"
    kind: Literal["text"]
    path: AbsolutePath | None
    tokenizer: Literal["byte", "character"]
    context: PositiveInt
    val_fraction: ValFraction


BuiltinDataSettings = (
    DigitsSettings
    | SyntheticImagesSettings
    | Cifar10Settings
    | Flowers102Settings
    | ImageFolderSettings
    | TextSettings
)
DataSettings = Annotated[BuiltinDataSettings | TargetSettings, Field(discriminator="kind")]
