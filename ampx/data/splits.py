"""What every data set gives: a training and a validation source of batches, and the sizes of its samples."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


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


@runtime_checkable
class BatchSource(Protocol):
    """Batches that depend on (seed, epoch, batch index) alone, so that a resumed run sees the same."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of `epoch` from index `start` on; what a batch is, the task and the data agree on."""
        ...


@dataclass(frozen=True, slots=True)
class Splits:
    """Training and validation batches: each a BatchSource, or a user's own iterable of batches."""

    train: BatchSource | Iterable[Any]
    val: BatchSource | Iterable[Any]
    spec: DataSpec
