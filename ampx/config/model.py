"""The `model` group. Sizes that come from the data (classes, channels, vocabulary) are not settings."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ampx.config.fields import Float, PositiveInt, Settings, TargetSettings

Dropout = Annotated[Float, Field(ge=0, lt=1)]


class ResNetSmallSettings(Settings):
    implementation: ClassVar[str] = "ampx.models.resnet_small.ResNetSmall"
    kind: Literal["resnet_small"]
    width: PositiveInt
    blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class MLPSettings(Settings):
    implementation: ClassVar[str] = "ampx.models.mlp.MLP"
    kind: Literal["mlp"]
    hidden: tuple[PositiveInt, ...]


class ViTTinySettings(Settings):
    implementation: ClassVar[str] = "ampx.models.vit_tiny.ViTTiny"
    kind: Literal["vit_tiny"]
    patch_size: PositiveInt
    width: PositiveInt
    depth: PositiveInt
    heads: PositiveInt
    dropout: Dropout


class GPTSettings(Settings):
    implementation: ClassVar[str] = "ampx.models.gpt.GPT"
    kind: Literal["gpt"]
    width: PositiveInt
    depth: PositiveInt
    heads: PositiveInt
    dropout: Dropout
    tie_weights: bool


class LSTMSettings(Settings):
    implementation: ClassVar[str] = "ampx.models.lstm.LSTM"
    kind: Literal["lstm"]
    width: PositiveInt
    depth: PositiveInt
    dropout: Dropout


class TorchvisionSettings(Settings):
    implementation: ClassVar[str] = "ampx.models.torchvision.torchvision_model"
    kind: Literal["torchvision"]
    name: str
    weights: str | None


BuiltinModelSettings = (
    ResNetSmallSettings | MLPSettings | ViTTinySettings | GPTSettings | LSTMSettings | TorchvisionSettings
)
ModelSettings = Annotated[BuiltinModelSettings | TargetSettings, Field(discriminator="kind")]
