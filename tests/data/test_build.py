"""Tests of ampx.data.build: every option of the group, and a user's own data."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ampx.build import import_target
from ampx.config.data import DataSettings
from ampx.config.fields import TargetSettings
from ampx.data.build import build_data
from ampx.data.splits import BatchSource, Splits
from ampx.spec import DataSpec

CONF = Path(__file__).parents[2] / "conf" / "data"
WITHOUT_FILES: dict[str, dict[str, Any]] = {
    "digits": {},
    "synthetic_images": {"num_samples": 200},
    "text": {},
}
SPEC = DataSpec(input_shape=(2,), num_classes=2)


def settings(option: str, **changes: Any) -> DataSettings:
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{option}.yaml"), changes)
    return TypeAdapter(DataSettings).validate_python(OmegaConf.to_container(config))


def custom(target: str, **arguments: Any) -> DataSettings:
    return settings("custom", _target_=f"my_data.{target}", **arguments)


@pytest.fixture(autouse=True)
def my_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """This very file, importable as a user's module would be."""
    monkeypatch.setitem(sys.modules, "my_data", sys.modules[__name__])


def loader(count: int = 4) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64)), batch_size=2
    )


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.zeros(2)


class Endless:
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.zeros(2)


def returns(train: str) -> Any:
    """A user's data function, whose training batches are chosen by name."""
    trains: dict[str, Any] = {
        "stream": Stream(),
        "used up": iter([1, 2]),
        "no iterable": 3,
        "dataset": TensorDataset(torch.zeros(3)),
        "no length": Endless(),
        "empty": [],
    }
    return trains[train], loader(), SPEC


def returns_splits(size: int) -> Splits:
    return Splits(loader(size), loader(size), SPEC)


def returns_nothing() -> None:
    return None


def returns_a_dict_as_spec() -> Any:
    return loader(), loader(), {"num_classes": 2}


@pytest.mark.parametrize("file", sorted(CONF.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_option_is_valid_and_has_an_implementation(file: Path) -> None:
    missing = {"custom": {"_target_": "my_data.returns"}, "imagefolder": {"root": "images"}}
    option = settings(file.stem, **missing.get(file.stem, {}))
    assert callable(
        import_target(option.target if isinstance(option, TargetSettings) else option.implementation)
    )


@pytest.mark.parametrize("option", WITHOUT_FILES)
def test_built_in_sources_repeat_an_epoch_and_skip_into_it(option: str) -> None:
    """The same seed and epoch give the same batches; `start=k` drops k of them; other seeds differ."""
    small = settings(option, batch_size=16, **WITHOUT_FILES[option])
    splits = build_data(small, seed=1)
    again = build_data(small, seed=1)
    other = build_data(small, seed=2)
    assert isinstance(splits.train, BatchSource)
    assert isinstance(splits.val, BatchSource)
    whole = [_flat(batch) for batch in splits.train.iterate(3, 0)]
    assert len(whole) == len(splits.train)
    resumed = [_flat(batch) for batch in again.train.iterate(3, 5)]  # type: ignore[union-attr]
    assert len(whole) - 5 == len(resumed)
    assert all(map(torch.equal, whole[5:], resumed))
    assert not torch.equal(whole[0], _flat(next(splits.train.iterate(4, 0))))
    assert not torch.equal(whole[0], _flat(next(other.train.iterate(3, 0))))  # type: ignore[union-attr]


@pytest.mark.parametrize("option", WITHOUT_FILES)
def test_a_batch_larger_than_the_data_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=r"data\.batch_size=1000000: .*set data\.batch_size="):
        build_data(settings(option, batch_size=1_000_000), seed=0)


def test_a_user_function_may_return_splits_or_three_things() -> None:
    assert build_data(custom("returns_splits", size=4), seed=0).spec is SPEC
    assert isinstance(build_data(custom("returns", train="stream"), seed=0), Splits)


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("returns_nothing", {}, r"data\._target_=my_data\.returns_nothing: gave a NoneType; return .*Splits"),
        ("returns_a_dict_as_spec", {}, r"spec is a dict; give ampx\.data\.splits\.DataSpec"),
        (
            "returns",
            {"train": "used up"},
            "train is used up after one epoch; return what can be iterated again",
        ),
        ("returns", {"train": "no iterable"}, "train is a int; give an iterable of batches"),
        (
            "returns",
            {"train": "dataset"},
            "train is a TensorDataset; give an iterable of batches, as a DataLoader",
        ),
        ("returns", {"train": "no length"}, "train has no length; give it __len__"),
        ("returns", {"train": "empty"}, "train has no batches; give it at least one"),
        ("returns", {"tain": "empty"}, r"data\.tain='empty': .* did you mean train\?"),
        ("returns", {}, r"needs a value for train; add \+data\.train=…"),
    ],
)
def test_a_user_function_that_returns_something_else_is_told_what(
    target: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_data(custom(target, **arguments), seed=0)


def _flat(batch: Tensor | tuple[Tensor, ...]) -> Tensor:
    return batch.flatten() if isinstance(batch, Tensor) else torch.cat([part.flatten() for part in batch])
