"""Tests of ampx.data.splits."""

import pytest

from ampx.spec import DataSpec


def test_sizes_of_images_are_what_models_ask_for() -> None:
    spec = DataSpec(input_shape=(3, 8, 8), num_classes=10)
    assert spec.sizes() == {"in_features": 192, "in_channels": 3, "image_size": 8, "num_classes": 10}


def test_only_square_images_have_an_image_size() -> None:
    assert "image_size" not in DataSpec(input_shape=(3, 8, 9)).sizes()


def test_tokens_have_a_vocabulary_and_a_context_but_no_features() -> None:
    spec = DataSpec(input_shape=(16,), vocab_size=256, context=16)
    assert spec.sizes() == {"vocab_size": 256, "context": 16}


def test_what_is_unknown_is_left_out() -> None:
    assert DataSpec(input_shape=()).sizes() == {}
    assert DataSpec(input_shape=(20,), num_classes=2).sizes() == {"in_features": 20, "num_classes": 2}


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="num_classes=0: must be at least 1"):
        DataSpec(input_shape=(3, 8, 8), num_classes=0)
    with pytest.raises(ValueError, match=r"input_shape=\(3, 0, 8\): must be at least 1"):
        DataSpec(input_shape=(3, 0, 8))
