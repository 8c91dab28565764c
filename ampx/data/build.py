"""From the `data` settings to batches."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

from torch.utils.data import IterableDataset

from ampx.build import build
from ampx.config.data import DataSettings
from ampx.config.fields import TargetSettings
from ampx.data.splits import BatchSource, Splits
from ampx.spec import DataSpec


def build_data(settings: DataSettings, seed: int) -> Splits:
    """The two splits; a user's own data get only the arguments that were typed, and no seed."""
    if isinstance(settings, TargetSettings):
        made = build(settings.target, settings.arguments, setting="data")
        return _checked(made, f"data._target_={settings.target}")
    splits = build(settings.implementation, {"settings": settings, "seed": seed})
    assert isinstance(splits, Splits)
    return splits


def _checked(made: object, typed: str) -> Splits:
    if isinstance(made, tuple) and len(cast(tuple[Any, ...], made)) == 3:
        made = Splits(*cast(tuple[Any, Any, Any], made))
    if not isinstance(made, Splits):
        raise ValueError(
            f"{typed}: gave a {type(made).__name__}; return ampx.data.splits.Splits(train, val, spec), "
            "or these three as a tuple"
        )
    _check_spec(made.spec, typed)
    _check_batches(made.train, f"{typed}: train")
    _check_batches(made.val, f"{typed}: val")
    return made


def _check_spec(spec: object, typed: str) -> None:
    if not isinstance(spec, DataSpec):
        raise ValueError(
            f"{typed}: spec is a {type(spec).__name__}; "
            "give ampx.data.splits.DataSpec(input_shape=…, num_classes=…)"
        )


def _check_batches(batches: object, which: str) -> None:
    if isinstance(batches, Iterator):
        raise ValueError(
            f"{which} is used up after one epoch; return what can be iterated again, as a DataLoader"
        )
    if not isinstance(batches, BatchSource | Iterable):
        raise ValueError(
            f"{which} is a {type(batches).__name__}; give an iterable of batches, as a DataLoader"
        )
    length = _length(batches)
    if length == 0:
        raise ValueError(f"{which} has no batches; give it at least one")
    if length is None and not isinstance(batches, IterableDataset) and not hasattr(batches, "state_dict"):
        raise ValueError(
            f"{which} has no length; give it __len__ (batches per epoch), "
            "or make it an IterableDataset with state_dict"
        )


def _length(batches: object) -> int | None:
    try:
        return len(cast(Sized, batches))
    except TypeError:  # no __len__, or a DataLoader over a stream
        return None
