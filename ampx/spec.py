"""The sizes of a data set's samples: what data give and models ask for."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What a model must know of the data; `input_shape` is one sample's, without the batch dimension."""

    input_shape: tuple[int, ...]
    num_classes: int | None = None
    vocab_size: int | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        smallest = {"input_shape": min(self.input_shape, default=1), **self._counts()}
        for name, size in smallest.items():
            if size < 1:
                raise ValueError(
                    f"DataSpec.{name}={getattr(self, name)}: must be at least 1; give the size of the data"
                )

    def sizes(self) -> dict[str, int]:
        """The sizes that are known, by the names under which models ask for them."""
        return {**self._input_sizes(), **self._counts()}

    def _input_sizes(self) -> dict[str, int]:
        if not self.input_shape or self.vocab_size is not None:
            return {}  # tokens are looked up, not multiplied: they have no features
        sizes = {"in_features": math.prod(self.input_shape)}
        if len(self.input_shape) == 3:
            channels, height, width = self.input_shape
            sizes |= {"in_channels": channels} | ({"image_size": height} if height == width else {})
        return sizes

    def _counts(self) -> dict[str, int]:
        counts = {"num_classes": self.num_classes, "vocab_size": self.vocab_size, "context": self.context}
        return {name: count for name, count in counts.items() if count is not None}
